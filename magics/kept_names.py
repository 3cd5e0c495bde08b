"""What the names of a notebook meant before a cell, for a cell of which nothing may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

ITEMS_MAX = 10_000
"""Copied of a list, a dict or a set, at the beginning of a cell; larger ones are not."""


class _Contents(NamedTuple):
    """What a list, a dict or a set of the user held, or whether a tensor required gradients."""

    of: Any
    held: object
    put_back: Callable[[Any, Any], None]

    @property
    def now(self) -> _Contents | None:
        return _contents(self.of)

    def equals(self, other: _Contents | None) -> bool:
        """Return whether the same objects are in it; their own ``==`` is not asked."""
        return other is not None and _identities(self.held) == _identities(other.held)


def _identities(held: object) -> object:
    if isinstance(held, dict):
        return [(id(key), id(value)) for key, value in held.items()]
    return [id(item) for item in held] if isinstance(held, list | set) else held


def _fill_list(found: list[object], held: list[object]) -> None:
    found[:] = held


def _fill(found: Any, held: Any) -> None:
    found.clear()
    found.update(held)


def _require(tensor: torch.Tensor, required: bool) -> None:
    if tensor.is_leaf:
        tensor.requires_grad_(required)


def _contents(value: object) -> _Contents | None:
    """Return what can be put back into the value; subclasses have methods of their own."""
    if isinstance(value, list | dict | set) and len(value) > ITEMS_MAX:
        return None
    if type(value) is list:
        return _Contents(value, list(value), _fill_list)
    if type(value) is dict or type(value) is set:
        return _Contents(value, value.copy(), _fill)
    if isinstance(value, torch.Tensor) and value.is_leaf:
        return _Contents(value, value.requires_grad, _require)
    return None


class KeptNames:
    """Names of ``namespace``, and the contents of lists, dicts and sets that have one, as they are now. Keeps
    the values alive. Lists, dicts and sets of more than ITEMS_MAX items stay as the cell leaves them."""

    def __init__(self, namespace: dict[str, object]) -> None:
        self._namespace = namespace
        self._before = {name: value for name, value in namespace.items() if not name.startswith("_")}
        found = map(_contents, self._before.values())
        self._contents = [contents for contents in found if contents is not None]
        self._left: dict[str, object] | None = None
        self._left_contents: list[_Contents | None] = []

    def leave(self) -> None:
        """The cell's code has ended, and that nothing of it runs is known later: by then, what the user has
        changed since stays."""
        self._left = dict(self._namespace)
        self._left_contents = [contents.now for contents in self._contents]

    def put_back(self) -> None:
        """Let the names mean what they meant."""
        for number, contents in enumerate(self._contents):
            left = self._left_contents[number] if self._left is not None else None
            now = contents.now
            if not contents.equals(now) and (self._left is None or (left is not None and left.equals(now))):
                contents.put_back(contents.of, contents.held)
        for name, value in self._before.items():
            if self._left is None or self._left.get(name) is self._namespace.get(name, self):
                self._namespace[name] = value
