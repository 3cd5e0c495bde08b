"""``djinn_lab.fetch`` and ``djinn_lab.execute_model``: one call for the common cases."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from djinn_lab.capture.tensor import LazyTensor
from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session


def fetch(tree: Any) -> Any:
    """A module or any nested containers of tensors, with plain tensors in place of lazy ones. What holds
    none comes back as it is."""
    leaves = [*tree.parameters(), *tree.buffers()] if isinstance(tree, torch.nn.Module) else tree_leaves(tree)
    for leaf in leaves:
        if type(leaf) is LazyTensor:
            session = leaf._value.storage.recorder.owner
            assert isinstance(session, Session)
            return session.fetch(tree)
    return tree


def execute_model(model: torch.nn.Module, x: Any, *, session: Session | None = None) -> Any:
    """Run ``model(x)`` without gradients on the pool and return plain tensors. The model's parameters
    stay on the pool for the next call."""
    own = session or connect()
    with torch.no_grad(), own.capture(f"execute_model({type(model).__name__})"):
        output = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
    return own.fetch(output)
