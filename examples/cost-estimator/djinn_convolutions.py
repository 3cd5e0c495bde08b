"""A cost estimator for a live pool and an optimization strategy for schedules."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.scheduler.ordering import dependencies
from djinn_lab.srg.costs import Work
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program_costs import MeasuredDevice

OVERHEAD_S = 0.25
"""Added for each convolution: large, so that its effect is easy to see."""


class ConvolutionOverhead:
    """The device's curves, and a fixed time for each convolution on a CPU."""

    def seconds(self, work: Work, device: MeasuredDevice) -> float | None:
        """Predict a program with convolutions on a CPU; any other program is left to the built-in model."""
        convolutions = sum(
            count * charge.calls
            for charge, count in work.charges
            if charge.family.startswith(("convolution", "depthwise"))
        )
        if device.kind != "cpu" or not convolutions:
            return None
        return work.seconds(device.curves) + convolutions * OVERHEAD_S


class LateAllocation:
    """Compute each value just before its first use, so that less memory is held at once."""

    name = "late-allocation"

    def propose(self, srg: SRG, order: Sequence[int]) -> Sequence[int]:
        """Return an order in which a node follows its prerequisites as late as these allow."""
        needs = dependencies(srg)
        wanted = set().union(*needs)
        done: dict[int, None] = {}
        pending = [node for node in reversed(order) if node not in wanted]
        while pending:
            missing = sorted(needs[pending[-1]] - done.keys())
            if missing:
                pending += missing
            else:
                done[pending.pop()] = None
        return tuple(done)
