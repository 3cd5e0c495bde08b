"""Attributes of torch that are replaced: any for a while, and ``tensor.data`` for good.

Torch's own setter of ``tensor.data = other`` would copy a lazy tensor's empty memory into a plain tensor,
which then crashes the process when read; it asks neither a mode nor the subclass about it. So the attribute
of :class:`torch.Tensor` is wrapped once, and each kind of recorder is asked in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from operator import is_not
from typing import Any, Protocol

import torch
from torch.jit._builtins import _get_builtin_table
from torch.utils._device import _device_constructors

MISSING = object()
COMPILER = "torch._dynamo.trace_rules"
"""What of torch's compiler has tables of functions. Its import takes seconds, so none is forced."""
Wanted = tuple[Any, str, Callable[[Any], Any]]
"""Owner and name of an attribute, and what makes its replacement of what it is."""
_DATA_OF_TORCH: Any = torch._C.TensorBase.data
set_data_of_torch: Callable[[Any, torch.Tensor], None] = _DATA_OF_TORCH.__set__
_setters: list[Callable[[torch.Tensor, torch.Tensor], bool]] = []


class Places(Protocol):
    """Attributes by owner and name, all read and written together."""

    def read(self) -> list[object]:
        """Return what is there, in the owners themselves: :data:`MISSING` where nothing is, or inherited."""
        ...

    def write(self, values: list[object]) -> None:
        """Set them all, and delete those that are to be :data:`MISSING`."""
        ...


class PythonPlaces:
    """:class:`Places` of any owners. The native recorder has its own."""

    def __init__(self, places: Sequence[tuple[object, str]], missing: object) -> None:
        self._places = places
        self._missing = missing

    def read(self) -> list[object]:
        return [vars(owner).get(name, self._missing) for owner, name in self._places]

    def write(self, values: list[object]) -> None:
        for (owner, name), value in zip(self._places, values, strict=True):
            if value is not self._missing:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)


@cache
def _fill_tables() -> None:
    """Have torch make its tables of its own functions, which it keeps for good, before any is another."""
    _device_constructors()
    torch.overrides.get_ignored_functions()
    torch.overrides.get_testing_overrides()
    torch.overrides.get_overridable_functions()
    _get_builtin_table()


class Replacements:
    """Attributes of torch that are others for a while, each made of what it is otherwise.

    They are made once, and again when something else is there by then, as when a user replaced it too.
    ``torch.jit.script`` reads the source of what it finds, so it finds torch's own."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        places: Callable[[Sequence[tuple[object, str]], object], Places] = PythonPlaces,
    ) -> None:
        self._wanted = [*wanted, (torch.jit, "script", self._outside)]
        self._places = places([(owner, name) for owner, name, _ in self._wanted], MISSING)
        self._made: tuple[list[Any], list[Any]] = ([self] * len(self._wanted), [])

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Replace them; afterwards they are what they were before, also where that was inherited."""
        _fill_tables()
        had_compiler = COMPILER in sys.modules
        before = self._places.read()
        made = self._made_of(before)
        try:
            self._places.write(made)
            yield
        finally:
            self._places.write(before)
            if COMPILER in sys.modules and not had_compiler:
                sys.modules[COMPILER].clear_lru_cache()  # its tables, made while functions were others

    def _outside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is called while nothing is replaced."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            now = self._places.read()
            self._places.write(self._made[0])
            try:
                return original(*args, **kwargs)
            finally:
                self._places.write(now)

        return call

    def _made_of(self, before: list[object]) -> list[object]:
        if any(map(is_not, before, self._made[0])):
            self._made = before, [make(getattr(owner, name)) for owner, name, make in self._wanted]
        return self._made[1]


def forget_type(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Let torch forget that gradients of ``tensor`` were of another type, as its setter does."""
    set_data_of_torch(tensor, torch.empty(0, dtype=dtype))


def _get_data(tensor: torch.Tensor) -> object:
    return _DATA_OF_TORCH.__get__(tensor)


def _set_data(tensor: torch.Tensor, new: torch.Tensor) -> None:
    if not any(setter(tensor, new) for setter in _setters):
        set_data_of_torch(tensor, new)


def ask_when_data_is_set(setter: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
    """Ask ``setter`` first from now on; it returns True when it has set the data itself."""
    if setter not in _setters:
        _setters.append(setter)
    torch.Tensor.data = property(_get_data, _set_data)  # type: ignore[assignment]
