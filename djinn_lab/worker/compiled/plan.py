"""One program with compiled regions: how a run of it is rewritten, and how its answer is read back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from djinn_lab.srg.program import Program, Scalar
from djinn_lab.srg.regions import Region, first_nodes, with_regions
from djinn_lab.srg.wiring import trace_wiring
from djinn_lab.worker.compiled.region_call import RegionCall
from djinn_lab.worker.compiled.sizes import resized_calls
from djinn_lab.worker.outcome import Outcome

OTHER_NUMBERS = "its numbers are others in each run"
OTHER_SIZES = "its sizes are others in each run"


def same_numbers(some: Sequence[Scalar], others: Sequence[Scalar]) -> bool:
    """Return whether an op computes the same with both: 0.0 and -0.0 are equal, and their reciprocals are
    not."""
    return some == others and repr(some) == repr(others)


class CompiledPlan:
    """Serves all programs with the structure of ``program`` whose regions have the same numbers and sizes.
    ``key``: its own. ``calls``: of its regions. ``seconds``: of every op of the whole program, as it ran
    before."""

    def __init__(
        self,
        program: Program,
        regions: Sequence[Region],
        calls: Sequence[RegionCall],
        key: bytes,
        seconds: Sequence[float],
    ) -> None:
        self.calls = calls
        self.key = key
        self._regions = regions
        self._seconds = seconds
        self._starts = first_nodes(len(program.nodes), regions)
        self._wiring = trace_wiring(program)
        varying = {place.node for region in regions for place in region.numbers}
        within = [index for region in regions for index in range(region.first, region.end)]
        self._numbers = [
            (index, program.nodes[index].scalars)
            for index in within
            if program.nodes[index].scalars and index not in varying
        ]
        self._called = {self._wiring.call_of[index] for index in within}

    @property
    def ops(self) -> int:
        """Return how many ops are in regions."""
        return sum(region.end - region.first for region in self._regions)

    def misfit(self, program: Program) -> str:
        """Say why the regions are not those of a program of this structure, empty where they are."""
        nodes = program.nodes
        if not all(same_numbers(nodes[index].scalars, numbers) for index, numbers in self._numbers):
            return OTHER_NUMBERS
        if not self._called.isdisjoint(resized_calls(self._wiring, program)):
            return OTHER_SIZES
        return ""

    def rewritten(self, program: Program) -> Program:
        """Return a program with its regions as one node each."""
        return with_regions(program, self._regions)

    def started(self, executed: int) -> int:
        """Return how many ops of the whole program have run when so many of the rewritten one have."""
        return self._starts[executed]

    def read_back(self, outcome: Outcome) -> None:
        """Put an answer in terms of the whole program. The time of a region is divided as its ops took it
        before."""
        times = array("d")
        times.frombytes(outcome.node_times)
        whole = array("d")
        for place, (first, end) in enumerate(pairwise(self._starts[: len(times) // 2 + 1])):
            start_s, end_s = times[2 * place], times[2 * place + 1]
            whole.extend(self._divided(first, end, start_s, end_s))
        outcome.node_times = whole.tobytes()
        failure = outcome.failure
        if failure is not None and failure.node is not None:
            outcome.failure = replace(failure, node=self._starts[failure.node])
        outcome.executed = self._starts[outcome.executed]
        outcome.ops_total = self._starts[-1]

    def _divided(self, first: int, end: int, start_s: float, end_s: float) -> Sequence[float]:
        if end == first + 1:
            return (start_s, end_s)
        shares = [max(seconds, 1e-9) for seconds in self._seconds[first:end]]
        scale = (end_s - start_s) / sum(shares)
        found: list[float] = []
        for share in shares:
            found += (start_s, start_s + share * scale)
            start_s += share * scale
        return found


def after(first: Outcome, second: Outcome) -> Outcome:
    """Return the answer of a run that was continued: the second one's, with what the first one did."""
    times = array("d")
    times.frombytes(second.node_times)
    for place, time_s in enumerate(times):
        times[place] = time_s + first.run_s
    second.node_times = first.node_times + times.tobytes()
    second.load_s += first.load_s
    second.run_s += first.run_s
    second.out_bytes += first.out_bytes
    second.in_bytes += first.in_bytes
    second.ahead_bytes += first.ahead_bytes
    return second
