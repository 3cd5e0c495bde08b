"""Ops whose CPU kernels tests replace, so that something happens in the middle of any call of the op."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Kernel = Callable[[str, Callable[..., Any]], None]


@contextmanager
def replaced_kernels() -> Iterator[Kernel]:
    """Replaces kernels by name, until its end."""
    library = torch.library.Library("aten", "IMPL")

    def replace(name: str, function: Callable[..., Any]) -> None:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            library.impl(name, function, "CPU", allow_override=True)

    try:
        yield replace
    finally:
        library._destroy()
