"""How much a program computes and moves: what its run time can be guessed from before it ran."""

from __future__ import annotations

import msgspec

from djinn_lab.srg.costs import CostBook
from djinn_lab.srg.program import Program
from djinn_lab.srg.wiring import trace_wiring


class Work(msgspec.Struct, frozen=True):
    """Sums over all ops. ``moved_bytes``: read and written on the device."""

    ops: int
    flops: int
    moved_bytes: int

    def seconds(self, flops_per_s: float, memory_bytes_per_s: float, op_overhead_s: float) -> float:
        """The roofline of the whole (Williams, Waterman, Patterson, CACM 2009): bound by arithmetic or by
        memory, the longer of both, plus the fixed cost of every op."""
        busy_s = max(self.flops / flops_per_s, self.moved_bytes / memory_bytes_per_s)
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
