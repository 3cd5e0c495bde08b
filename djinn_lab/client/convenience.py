"""``djinn_lab.fetch`` and ``djinn_lab.execute_model``: one call for the common cases."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from djinn_lab.capture.lazy import is_lazy, recorder_of
from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session


def fetch(tree: Any) -> Any:
    """A module or any nested containers of tensors, with plain tensors in place of lazy ones. What holds
    none comes back as it is."""
    session = _session_of(tree)
    return tree if session is None else session.fetch(tree)


def execute_model(model: torch.nn.Module, x: Any, *, session: Session | None = None) -> Any:
    """Run ``model(x)`` without gradients on the pool and return plain tensors. ``x``: a tensor, a tuple of
    arguments or a dict of keyword arguments. The model's parameters, and without ``session`` the session
    that was opened for it, stay on the pool for the next call."""
    own = session or _session_of(model) or connect()
    with torch.no_grad(), own.capture(f"execute_model({type(model).__name__})"):
        output = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
    return own.fetch(output)


def _session_of(tree: Any) -> Session | None:
    """The session that the first lazy tensor belongs to."""
    leaves = [*tree.parameters(), *tree.buffers()] if isinstance(tree, torch.nn.Module) else tree_leaves(tree)
    for leaf in leaves:
        if is_lazy(leaf):
            session = recorder_of(leaf).owner
            assert isinstance(session, Session)
            return session
    return None
