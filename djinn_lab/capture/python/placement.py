"""Which ops of a captured cell run on plain tensors as they are (:mod:`djinn_lab.capture.host.ops`)."""

from __future__ import annotations

from typing import Any

from djinn_lab.capture.host.ops import SEES_ALL_MEMORY, stays_on_host, tensors_in
from djinn_lab.capture.python.host_tensors import HostTensors
from djinn_lab.capture.python.tensor import LazyTensor
from djinn_lab.capture.sending.segment import Segment
from djinn_lab.capture.shapes.signature import Signature
from djinn_lab.errors import CaptureError


class Placement:
    """``host_only``: whatever can stay does (set around data loaders)."""

    def __init__(self, host: HostTensors, segment: Segment) -> None:
        self._host = host
        self._segment = segment
        self.host_only = False

    def is_host(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True when the caller should run the op on the plain tensors as they are (they are then up to
        date)."""
        if args and type(args[0]) is LazyTensor:
            return False
        tensors = tensors_in(args, kwargs)
        if any(type(tensor) is LazyTensor for tensor in tensors):
            if signature.func in SEES_ALL_MEMORY:
                raise CaptureError(
                    f"{signature.name} of a plain tensor and a lazy one may look beyond the plain one.",
                    "Make the first tensor lazy, with .clone() in the cell, or fetch the other with .cpu().",
                )
            return False
        written = list(signature.written_tensors(args, kwargs))
        stays = self.host_only or stays_on_host(signature, args, kwargs, tensors)
        stays = stays or any(self._host.must_write(tensor) for tensor in written)
        if not stays and not self._host.share_memory(written, tensors):
            return False
        if self._host.dirty and any(self._host.is_dirty(tensor) for tensor in tensors):
            self._host.write_back("a tensor written in this cell was read on the host")
        if signature.random:
            self._segment.finish_draws("random numbers were drawn on the host")
        for tensor in written:
            self._host.forget(tensor)
        return True
