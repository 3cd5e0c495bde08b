"""One op with its arguments, to be run on stand-ins of its tensors, here or in another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from djinn_lab.capture.host.ops import tensors_in
from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.capture.values import Layout, LazyValue

REAL_CHECK_BYTES_MAX = 64 * 2**20


class Trial(NamedTuple):
    """What a kernel made of stand-ins with data. ``resized``: as :meth:`Call.resized`."""

    returned: Any
    resized: tuple[tuple[str, int, Layout], ...]


class Call:
    """``trial``: what a kernel made of it, where one was asked."""

    def __init__(
        self, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any], values: Sequence[LazyValue]
    ) -> None:
        self.signature = signature
        self.values = values
        self.layouts = [value.layout for value in values]
        self.args = args
        self.kwargs = kwargs
        self.trial: Trial | None = None
        self._stand_ins: list[torch.Tensor] = []
        self.firsts: list[int] = []
        if signature.written and len(values) > 1:  # eager refuses to write a tensor that it also reads
            tensors = list(map(id, tensors_in(tuple(args), kwargs)))
            if len(tensors) == len(values):
                self.firsts = [tensors.index(one) for one in tensors]

    def arguments(
        self, convert: Callable[[LazyValue], torch.Tensor], device: torch.device
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with each tensor replaced by what ``convert`` makes of its value, and devices by
        ``device``."""
        made = [convert(value) for value in self.values]
        self._stand_ins = [made[first] for first in self.firsts] if self.firsts else made
        ready = iter(self._stand_ins)
        args = [_fill(item, ready, device) for item in self.args]
        kwargs = {name: _fill(item, ready, device) for name, item in self.kwargs.items()}
        if self.signature.is_factory and "device" in self.signature.keyword_kinds:
            kwargs["device"] = device
        return args, kwargs

    def may_write_twice(self) -> bool:
        """Return whether some input overlaps itself or another. Eager refuses many writes to such memory."""
        values = self.values
        return (
            len({value.storage for value in values}) < len(set(values))
            or len(set(self.firsts)) < len(self.firsts)
            or any(layout.overlaps for layout in self.layouts)
        )

    def is_apart(self) -> bool:
        """Return whether each distinct tensor has memory of its own, and every element its own place. A
        tensor may come twice: ``x.mul_(x)`` is no hazard to an elementwise op."""
        firsts = self.firsts or range(len(self.values))
        distinct = dict(zip(firsts, self.values, strict=True)).values()
        return len({value.storage for value in distinct}) == len(distinct) and not any(
            layout.overlaps for layout in self.layouts
        )

    def is_small(self) -> bool:
        """Return whether its stand-ins are little enough to be filled."""
        return sum(layout.span_bytes for layout in self.layouts) <= REAL_CHECK_BYTES_MAX

    def resized(self) -> Iterator[tuple[str, int, Layout]]:
        """Return the new layouts of stand-ins for ``out=`` tensors: argument, place in its list, new
        layout."""
        stand_ins = iter(zip(self._stand_ins, self.values, strict=True))
        for name, argument in (*zip(self.signature.names, self.args, strict=False), *self.kwargs.items()):
            tensors = argument if isinstance(argument, (list, tuple)) else (argument,)
            for place, tensor in enumerate(tensors):
                if isinstance(tensor, torch.Tensor):
                    now, value = next(stand_ins)
                    if name in self.signature.written and tuple(now.shape) != value.layout.shape:
                        yield name, place, Layout.of_tensor(now)

    def run(self, arguments: tuple[list[Any], dict[str, Any]]) -> Any:
        return self.signature.func(*arguments[0], **arguments[1])


def _fill(item: object, ready: Iterator[torch.Tensor], device: torch.device) -> object:
    if isinstance(item, torch.Tensor):
        return next(ready)
    if isinstance(item, (list, tuple)):
        return [_fill(part, ready, device) for part in item]
    return device if isinstance(item, torch.device) else item
