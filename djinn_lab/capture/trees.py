"""Tensors in nested lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def map_tensors(convert: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Apply to every tensor in nested lists, tuples and dicts."""
    if isinstance(tree, torch.Tensor):
        return convert(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(convert, item) for item in tree)
    if isinstance(tree, dict):
        return {key: map_tensors(convert, item) for key, item in tree.items()}
    return tree
