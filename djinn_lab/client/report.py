"""What one cell did, measured: seconds per stage, bytes, cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from djinn_lab.client.cuts import CutRecord, loops_of_cuts
from djinn_lab.protocol.compiling import OP_BY_OP
from djinn_lab.protocol.messages import JobUpdate, SegmentResult
from djinn_lab.srg.merging import STREAMED
from djinn_lab.units import counted, format_bytes, format_seconds

STAGES = (
    "preceding",
    "capture",
    "upload",
    "prepare",
    "network",
    "reconnecting",
    "queued",
    "restoring",
    "recovering",
    "preempted",
    "dispatch",
    "load",
    "run",
    "fetch",
    "receive",
)
_SAID_MAX = 4
WAITING_STATES = ("RESTORING", "QUEUED", "PREEMPTED")


@dataclass
class CellReport:
    """``stages``: seconds by stage; they do not overlap, and with ``unattributed_s`` they make ``total_s``.

    ``run_s``: seconds that the device ran ops, including those during which the cell continued to record.

    ``preceding`` is the wait for the cell before, which ran with ``--noblock``; ``capture`` is the cell's own
    Python with recording, ``upload`` tensors on their way to the pool,
    ``plan_hits`` and ``plan_misses``: ops whose shapes were known here, or not; ``program_hits`` and
    ``program_misses``: segments whose graph the pool had checked and measured before, or not.

    ``ops_sent``: in the segments that the pool has answered; ``ops_run``: those of them that ran.
    ``gang``: what became of the wish for several devices, in the last segment, ``""`` without one.
    ``recovery``: what was made again after a worker was lost, ``""`` for nothing.
    ``regions``: what became of compiled regions, with the number of segments of which it was said, the last
    said last.
    ``batched_with``: the most other sessions with which a segment ran as one batch.
    ``out_bytes``, ``in_bytes``: values that went to the host or the disk, because the device had no memory
    for them beside others, and came back for the ops that read them; ``ahead_bytes``: of these, while ops
    before them ran.
    ``waits``: the pool's reasons while the cell was pending or waited for memory, in order.
    ``outcome``: ``done``, ``failed``, ``cancelled`` or ``pending``; ``error``: its type and message.

    ``graph_bytes`` and ``graph_bytes_sent``: of the whole graphs, and of what the pool did not have yet.

    ``prepare`` building and encoding graphs, ``network`` the way there and back, ``reconnecting`` the wait
    for a pool that was gone or silent, ``receive`` reading results; the others are measured by the pool.
    """

    cell: str
    job: str | None = None
    device: str | None = None
    stages: dict[str, float] = field(default_factory=dict)
    total_s: float = 0.0
    ops_recorded: int = 0
    ops_run: int = 0
    ops_sent: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    peak_bytes: int = 0
    plan_hits: int = 0
    plan_misses: int = 0
    graph_bytes: int = 0
    graph_bytes_sent: int = 0
    program_hits: int = 0
    program_misses: int = 0
    run_s: float = 0.0
    cuts: list[CutRecord] = field(default_factory=list)
    gang: str = ""
    recovery: str = ""
    regions: Counter[str] = field(default_factory=Counter)
    batched_with: int = 0
    out_bytes: int = 0
    in_bytes: int = 0
    ahead_bytes: int = 0
    waits: list[str] = field(default_factory=list)
    outcome: str = ""
    error: str = ""

    def note_wait(self, update: JobUpdate) -> None:
        """Remember the pool's reason, if the update says that the cell waits."""
        if update.state in WAITING_STATES and update.reason and update.reason not in self.waits[-1:]:
            self.waits.append(update.reason)

    def add_result(self, result: SegmentResult) -> None:
        """Count what the answer to a segment says of its run."""
        self.device = result.device
        self.gang = result.gang or self.gang
        self.recovery = result.recovery or self.recovery
        if result.compiled:
            self.regions[result.compiled] = self.regions.pop(result.compiled, 0) + 1
        self.batched_with = max(self.batched_with, result.batched_with)
        self.program_hits += result.plan_cached
        self.program_misses += not result.plan_cached
        self.ops_run += result.executed
        self.peak_bytes = max(self.peak_bytes, result.peak_bytes)
        self.out_bytes += result.out_bytes
        self.in_bytes += result.in_bytes
        self.ahead_bytes += result.ahead_bytes
        self.run_s += result.stages.get("run", 0.0)

    def add(self, stage: str, seconds: float) -> None:
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds

    def add_wait(self, stages: Mapping[str, float], pool_s: float, total_s: float, waited_s: float) -> None:
        """A segment was answered ``total_s`` after it was sent, of which the cell waited the last
        ``waited_s``. Only that part is the cell's time: the pool's stages from the last one backwards,
        then the network."""
        left = waited_s
        for name in reversed(STAGES):
            part = min(left, stages.get(name, 0.0))
            if part > 0:
                self.add(name, part)
                left -= part
        network = max(0.0, total_s - pool_s)
        if network > 0:
            self.add("network", min(left, network))

    @property
    def compiled(self) -> str:
        """Say what became of compiled regions, of each part between two cuts where that differs, the last
        first; ``""`` without a tolerance."""
        parts: Counter[str] = Counter()
        last_said: dict[str, str] = {}
        for one, count in self.regions.items():
            name = _without_times(one)
            parts[name] += count
            last_said.pop(name, None)
            last_said[name] = one
        if len(parts) < 2:
            return "".join(last_said.values())
        compiled = [name for name in reversed(last_said) if not name.startswith(OP_BY_OP)]
        named = [*compiled, *(name for name in last_said if name.startswith(OP_BY_OP))]
        said = [f"{last_said[name]} ({counted(parts[name], 'part')})" for name in named[:_SAID_MAX]]
        rest = sum(parts[name] for name in named[_SAID_MAX:])
        return "; ".join([*said, *([f"and something else of {counted(rest, 'part')}"] if rest else [])])

    @property
    def parts(self) -> int:
        """Return in how many parts the pool answered the cell."""
        return self.program_hits + self.program_misses

    @property
    def unattributed_s(self) -> float:
        return self.total_s - sum(self.stages.values())

    @property
    def offloading(self) -> str:
        """What was moved for lack of memory, ``""`` for nothing."""
        if not self.out_bytes and not self.in_bytes:
            return ""
        ahead = f" ({format_bytes(self.ahead_bytes)} while it computed)" if self.ahead_bytes else ""
        return (
            f"{format_bytes(self.out_bytes)} left the device and {format_bytes(self.in_bytes)} came back"
            f"{ahead}, since the cell's values do not fit it together"
        )

    def lines(self) -> list[str]:
        """For people, most important first."""
        if self.job is None:
            return [f"{self.cell}: no torch work was captured; nothing was sent to the pool."]
        stages = ", ".join(
            f"{name} {format_seconds(self.stages[name])}" for name in STAGES if self.stages.get(name, 0) > 0
        )
        took = format_seconds(self.total_s)
        ran = (
            f"{self.ops_run} ops on {self.device} in {took}" if self.device else f"nothing of it ran ({took})"
        )
        lines = [
            f"{self.cell}: {ran}",
            f"stages: {stages}, unattributed {format_seconds(max(0.0, self.unattributed_s))}",
            f"sent {format_bytes(self.bytes_up)}, received {format_bytes(self.bytes_down)}, "
            f"peak on the device {format_bytes(self.peak_bytes)}",
        ]
        if self.offloading:
            lines.append(f"offloaded: {self.offloading}")
        if self.recovery:
            lines.append(f"recovery: {self.recovery}")
        if self.batched_with:
            lines.append(f"batched: with {counted(self.batched_with, 'other session')}")
        if self.compiled:
            lines.append(f"compiled: {self.compiled}")
        if self.gang:
            lines.append(f"gang: {self.gang}")
        lines.append(
            f"shapes known here: {self.plan_hits} of {self.plan_hits + self.plan_misses} ops; "
            f"graphs known to the pool: {self.program_hits} of {self.parts}, "
            f"{format_bytes(self.graph_bytes)} of them sent as {format_bytes(self.graph_bytes_sent)}"
        )
        cuts = [cut for cut in self.cuts if cut.cause != STREAMED]
        if len(cuts) < len(self.cuts):
            ahead = len(self.cuts) - len(cuts)
            lines.append(
                f"sent ahead in {counted(ahead, 'part')} while recording; "
                f"the device ran {format_seconds(self.run_s)}"
            )
        lines += [
            f"cut: {cut.cause}{f' (line {cut.line})' if cut.line else ''}, {cut.ops} ops, "
            f"{format_seconds(cut.seconds)}"
            for cut in cuts[:20]
        ]
        if len(cuts) > 20:
            lines.append(f"... and {len(cuts) - 20} more cuts")
        lines += [f"loop: {loop.sentence()}" for loop in loops_of_cuts(cuts)]
        return lines

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def _without_times(said: str) -> str:
    """Return what is equal for each run of a part whose regions are compiled, whatever time they took."""
    return said if said.startswith(OP_BY_OP) else said.partition(": ")[0]
