"""The pending nodes of a native recorder, as a :class:`~djinn_lab.capture.sending.segment.Segment` reads
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from djinn_lab.capture.host.exposure import digest_of
from djinn_lab.capture.native.extension import NativeCore, NativeFlight
from djinn_lab.capture.sending.segment import AssembledPart
from djinn_lab.srg.program import EncodedProgram


class NativeNodes:
    """A :class:`~djinn_lab.capture.sending.segment.Nodes`; it also records where an op comes from."""

    goes_ahead = True

    def __init__(self, core: NativeCore) -> None:
        self._core = core

    @property
    def look_at(self) -> int:
        return int(self._core.look_at)

    @look_at.setter
    def look_at(self, count: int) -> None:
        self._core.look_at = count

    @property
    def patience(self) -> int:
        return int(self._core.patience)

    @patience.setter
    def patience(self, count: int) -> None:
        self._core.patience = count

    @property
    def pending(self) -> int:
        return int(self._core.pending)

    @property
    def calls(self) -> int:
        return int(self._core.calls)

    @property
    def begins_call(self) -> bool:
        return bool(self._core.begins_call)

    def line(self) -> int:
        return int(self._core.line)

    def begin_optimizer(self) -> None:
        self._core.begin_optimizer()

    def end_optimizer(self) -> None:
        self._core.end_optimizer()

    def assemble(self, fetch: Sequence[int], rng_state: bytes | None) -> AssembledPart:
        self._core.draws_open = False
        data, nodes, release, flight = self._core.assemble(list(fetch), rng_state)
        return AssembledPart(None if data is None else EncodedProgram(data, nodes), release, flight)

    def settle(self, flight: NativeFlight, executed: int, arrived: bool, reason: str) -> None:
        self._core.draws_open = False
        self._core.settle(flight, executed, arrived, reason)

    def position(self, flight: NativeFlight, executed: int) -> int:
        return flight.position(executed)

    def lose_pending(self, reason: str) -> None:
        self._core.draws_open = False
        self._core.lose_pending(reason)

    def lose_pool(self, flight: NativeFlight, reason: str) -> None:
        self._core.lose_pool(flight, reason)

    def bytes_of(self, flight: NativeFlight, source: int) -> torch.UntypedStorage | None:
        host, exposure = self._core.bytes_of(flight, source)
        changed = exposure is not None and digest_of(host) != exposure.digest
        return None if changed else host

    def lose_held(self, values: Sequence[int], reason: str) -> None:
        self._core.lose_held(list(values), reason)
