"""Replacing an attribute for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """``owner.name`` is ``new`` inside; afterwards what it was, also where it was inherited."""
    old = vars(owner).get(name, _MISSING)
    setattr(owner, name, new)
    try:
        yield
    finally:
        if old is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, old)
