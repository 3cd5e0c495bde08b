"""The questions that guards ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from djinn_lab.errors import Refused

_INDEX_DTYPES = (torch.int64, torch.int32)


class CallArguments:
    """The arguments of one call by name; None for one that the op does not take."""

    def __init__(self, op: str, values: dict[str, Any]) -> None:
        self._op = op
        self._values = values

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name)

    def refuse(self, problem: str) -> NoReturn:
        raise Refused(
            f"{self._op}: {problem}.", "No op that autograd or torch.nn calls is given such arguments."
        )

    def expect(self, right: bool, problem: str) -> None:
        if not right:
            self.refuse(problem)

    def expect_shape(self, name: str, shape: Sequence[int]) -> None:
        """Of a tensor that is given."""
        found = self._values[name]
        if tuple(found.shape) != tuple(shape):
            self.refuse(f"{name} has shape {tuple(found.shape)}, and {tuple(shape)} is needed")

    def expect_sizes(self, count: int, *names: str) -> None:
        """Tensors, where they are given, have one dimension of so many elements."""
        for name in names:
            if self._values.get(name) is not None:
                self.expect_shape(name, (count,))

    def expect_elements(self, count: int, *names: str) -> None:
        """Tensors, where they are given, have so many elements."""
        for name in names:
            found = self._values.get(name)
            if found is not None and found.numel() != count:
                self.refuse(f"{name} has {found.numel()} elements, and {count} are needed")

    def expect_alike(self, name: str, *names: str) -> None:
        """Tensors, where they are given, have the dtype of the first."""
        dtype = self._values[name].dtype
        for other in names:
            found = self._values.get(other)
            if found is not None and found.dtype is not dtype:
                self.refuse(f"{other} is {found.dtype}, and {name} is {dtype}")

    def expect_indices(
        self, name: str, end: int, other: int | None = None, dtypes: Any = _INDEX_DTYPES
    ) -> None:
        """All elements lie in 0 to ``end``, which is outside, or are ``other``."""
        found = self._values[name]
        if found.dtype not in dtypes:
            self.refuse(f"{name} is {found.dtype}")
        if other is not None:
            found = found[found != other]
        if not found.numel():
            return
        least, most = torch.aminmax(found)
        if least < 0 or most >= end:
            self.refuse(f"{name} has an index outside 0 to {end - 1}")


Check = Callable[[CallArguments], None]
