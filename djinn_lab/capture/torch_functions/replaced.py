"""Replacing attributes for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """``owner.name`` is ``new`` inside; afterwards what it was, also where it was inherited."""
    with all_replaced([(owner, name, new)]):
        yield


@contextmanager
def all_replaced(replacements: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """The same for many, each (owner, name, new)."""
    before = [(owner, name, vars(owner).get(name, _MISSING)) for owner, name, _ in replacements]
    try:
        for owner, name, new in replacements:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in reversed(before):
            if old is not _MISSING:
                setattr(owner, name, old)
            elif name in vars(owner):
                delattr(owner, name)
