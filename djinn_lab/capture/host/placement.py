"""Which ops of a captured cell run on plain tensors as they are (:mod:`djinn_lab.capture.host.ops`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from djinn_lab.capture.host.host_writes import HostWrites
from djinn_lab.capture.host.ops import SEES_ALL_MEMORY, stays_on_host
from djinn_lab.capture.sending.segment import Segment
from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.errors import CaptureError


class PlainTensorTable(Protocol):
    """What a recorder knows about plain tensors, some of which have newer values on the pool (dirty)."""

    def must_write(self, tensor: torch.Tensor) -> bool: ...

    def share_memory(self, written: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool: ...

    def is_dirty(self, tensor: torch.Tensor) -> bool: ...

    def write_back(self, cause: str) -> None: ...

    def forget(self, tensor: torch.Tensor) -> None: ...


class Placement:
    """Decides which ops run on the host. ``is_lazy``: whether the recorder's tensor has no data here."""

    def __init__(
        self, plain: PlainTensorTable, segment: Segment, is_lazy: Callable[[torch.Tensor], bool]
    ) -> None:
        self._plain = plain
        self._segment = segment
        self._is_lazy = is_lazy
        self.writes = HostWrites(segment)

    def is_host(
        self,
        signature: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        host_only: bool,
    ) -> bool:
        """Decide whether the op runs on the plain tensors as they are, which are then up to date.

        ``tensors``: all among the arguments. ``host_only``: whatever can stay, stays (set around data
        loaders). Raises CaptureError for an op that may read memory beyond a plain tensor.
        """
        if any(self._is_lazy(tensor) for tensor in tensors):
            if signature.func in SEES_ALL_MEMORY and not self._is_lazy(args[0]):
                raise CaptureError(
                    f"{signature.name} of a plain and a lazy tensor may read memory beyond the plain one.",
                    "Make the first tensor lazy, with .clone() in the cell, or fetch the other with .cpu().",
                )
            return False
        written = list(signature.written_tensors(args, kwargs))
        stays = host_only or stays_on_host(signature, args, kwargs, tensors)
        stays = stays or any(self._plain.must_write(tensor) for tensor in written)
        if not stays and not self._plain.share_memory(written, tensors):
            return False
        if any(self._plain.is_dirty(tensor) for tensor in tensors):
            self._plain.write_back("a tensor written in this cell was read on the host")
        if signature.random:
            self._segment.finish_draws("random numbers were drawn on the host")
        for tensor in written:
            self._plain.forget(tensor)
            self.writes.remember(tensor)
        return True
