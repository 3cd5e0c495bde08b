"""How much a program computes and moves: what its run time can be guessed from before it ran."""

from __future__ import annotations

import msgspec

from djinn_lab.srg.costs import CostBook
from djinn_lab.srg.program import Program
from djinn_lab.srg.wiring import trace_wiring


def roofline_s(flops: int, moved_bytes: int, flops_per_s: float, memory_bytes_per_s: float) -> float:
    """Bound run time by arithmetic or by memory, the slower of both, in seconds (Williams, Waterman,
    Patterson, "Roofline", CACM 2009)."""
    return max(flops / flops_per_s, moved_bytes / memory_bytes_per_s)


class Work(msgspec.Struct, frozen=True):
    """Sums over all ops. ``moved_bytes``: read and written on the device."""

    ops: int
    flops: int
    moved_bytes: int

    def seconds(self, flops_per_s: float, memory_bytes_per_s: float, op_overhead_s: float) -> float:
        """Predict the run time by the roofline of the whole, plus the fixed cost of every op."""
        busy_s = roofline_s(self.flops, self.moved_bytes, flops_per_s, memory_bytes_per_s)
        return busy_s + self.ops * op_overhead_s


def work_of(program: Program) -> Work:
    """The program must be valid."""
    book = CostBook(trace_wiring(program))
    flops = moved_bytes = 0
    for index, record in enumerate(program.nodes):
        cost = book.cost(index, record)
        flops += cost.flops
        moved_bytes += cost.bytes_read + cost.bytes_written
    return Work(len(program.nodes), flops, moved_bytes)
