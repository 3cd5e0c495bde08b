"""One call's arguments, read once: the cache key, the input values, the scalars, and tensors in nested
containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from djinn_lab.capture.shapes.signature import ArgumentKind, Signature
from djinn_lab.capture.values import LazyValue
from djinn_lab.srg.program import ComplexNumber, Scalar

NUMBERS = frozenset((bool, int, float, complex))


class Arguments:
    """The arguments of one call. ``key`` says all of them that can influence result layouts (offsets only
    where the op makes views). ``values`` are the input tensors' values in reading order."""

    __slots__ = ("_value_of", "key", "scalars", "values")

    def __init__(
        self,
        value_of: Callable[[torch.Tensor], LazyValue],
        signature: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        self._value_of = value_of
        self.values: list[LazyValue] = []
        self.scalars: list[Scalar] = []
        key: list[object] = [signature]
        for kind, argument in zip(signature.kinds, args, strict=False):
            if kind is ArgumentKind.TENSOR and argument is not None and type(argument) not in NUMBERS:
                value = value_of(argument)
                self.values.append(value)
                key.append(value.layout)
                if signature.is_view:
                    key.append(value.offset)
            else:
                self._read(kind, argument, key)
        for name, argument in kwargs.items():
            key.append(name)
            self._read(signature.keyword_kinds[name], argument, key)
        self.key = tuple(key)

    def aliasing(self) -> tuple[object, ...]:
        """Return how the inputs share memory, where an op that writes some of them could mind; else
        nothing."""
        values = self.values
        storages = [value.storage for value in values]
        if len(set(map(id, storages))) == len(storages) or values.count(values[0]) == len(values):
            return ()
        return tuple((storages.index(value.storage), value.offset) for value in values)

    def _read(self, kind: ArgumentKind, argument: Any, key: list[object]) -> None:
        if argument is None:
            key.append(None)
        elif kind is ArgumentKind.STATIC:
            key.append(_hashable(argument))
        elif (
            kind is ArgumentKind.SCALAR or type(argument) in NUMBERS
        ):  # torch also passes numbers where tensors are declared
            key.append(type(argument))
            self.scalars.append(_scalar(argument))
        elif kind is ArgumentKind.TENSOR:
            self._read_tensor(argument, key)
        elif kind is ArgumentKind.TENSOR_LIST:
            key.append(len(argument))
            for item in argument:
                if item is None:
                    key.append(None)
                else:
                    self._read_tensor(item, key)
        else:
            key.extend((len(argument), *map(type, argument)))
            self.scalars.extend(map(_scalar, argument))

    def _read_tensor(self, tensor: torch.Tensor, key: list[object]) -> None:
        value = self._value_of(tensor)
        self.values.append(value)
        key.extend((value.layout, value.offset))


def _hashable(argument: object) -> object:
    if isinstance(argument, (list, tuple)):
        return tuple(_hashable(item) for item in argument)
    if isinstance(argument, (bool, float, complex)):  # True, 1 and 1.0 are equal, and so are 0.0 and -0.0
        return type(argument), repr(argument)
    return argument


def _scalar(number: complex) -> Scalar:
    if isinstance(number, complex):
        return ComplexNumber(number.real, number.imag)
    return number


def map_tensors(convert: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Apply to every tensor in nested lists, tuples and dicts."""
    if isinstance(tree, torch.Tensor):
        return convert(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(convert, item) for item in tree)
    if isinstance(tree, dict):
        return {key: map_tensors(convert, item) for key, item in tree.items()}
    return tree
