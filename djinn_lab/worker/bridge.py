"""What the extension asks of Python: rare steps that the session, or another thread, must know of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from djinn_lab.srg.program import Program
from djinn_lab.worker.executor import Counts, ExecutionPlan, NativeRun
from djinn_lab.worker.outcome import Stop, StopSignal
from djinn_lab.worker.reading import LazyNodes
from djinn_lab.worker.storages import Storage
from djinn_lab.worker.values import SessionValues


class Bridge:
    """One run's. Called with the GIL, by the thread that runs the program. ``made``: called with every value
    that becomes the session's."""

    def __init__(
        self,
        values: SessionValues,
        made: Callable[[int], None],
        should_stop: Callable[[], bool],
        report: Callable[[int, int], None],
    ) -> None:
        self._values = values
        self._made = made
        self.should_stop = should_stop
        self.report = report
        self.drop = values.drop
        self.grow = values.grow
        self.end_write = values.end_write
        self.announce = values.announce_write
        self.end_tracked = values.tiers.fences.end_write
        self.resized = values.resized
        self.layouts_changed = values.layouts.clear

    def begin(
        self,
        plan: ExecutionPlan,
        counts: Counts,
        program: Program,
        executed: int,
        origin: float,
        should_stop: Callable[[], Stop | None],
        device: torch.device,
    ) -> NativeRun:
        """The run of ``program``, before its first node but ``executed``."""
        values, nodes = self._values, program.nodes
        return plan.begin(
            counts,
            self,
            nodes.encoded if isinstance(nodes, LazyNodes) else nodes,
            program.sources,
            values.tensors,
            values.storage_of,
            executed,
            origin,
            should_stop.raised if isinstance(should_stop, StopSignal) else None,
            str(device),
        )

    def place(self, identifiers: Sequence[int], tensors: Sequence[torch.Tensor | None]) -> None:
        """Their memory is reserved and counted on the device already."""
        for identifier, tensor in zip(identifiers, tensors, strict=True):
            self._made(identifier)
            self._values.place(identifier, tensor)

    def begin_write(self, identifiers: Sequence[int]) -> list[Storage]:
        return self._values.begin_write(identifiers, range(len(identifiers)))
