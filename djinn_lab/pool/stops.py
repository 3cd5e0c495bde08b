"""A segment that was stopped between two ops: what it had done, so that it goes on and ends as one run."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from djinn_lab.protocol.worker import Resume, SegmentDone, SegmentPreempted, WorkerMemory


@dataclass(slots=True)
class Stops:
    """Of one segment's stops so far. ``executed``, ``rng_state``, ``if_given_up``: at the last one, as in
    :class:`~djinn_lab.protocol.worker.SegmentPreempted`. Seconds are summed over its runs; those of nodes
    count from the first run's beginning, without the time between runs, which is ``aside_s``. ``since_s``:
    when it stopped, None while it runs. ``lost``: what it had made is gone, and how."""

    executed: int = 0
    rng_state: bytes | None = None
    if_given_up: list[int] = field(default_factory=list)
    node_start_s: list[float] = field(default_factory=list)
    node_end_s: list[float] = field(default_factory=list)
    load_s: float = 0.0
    run_s: float = 0.0
    peak_bytes: int = 0
    aside_s: float = 0.0
    since_s: float | None = None
    lost: str = ""

    def add(self, message: SegmentPreempted, now_s: float) -> None:
        self.executed = message.executed
        self.rng_state = message.rng_state
        self.if_given_up = message.if_given_up
        self.node_start_s += [self.run_s + seconds for seconds in message.node_start_s]
        self.node_end_s += [self.run_s + seconds for seconds in message.node_end_s]
        self.load_s += message.load_s
        self.run_s += message.run_s
        self.peak_bytes = max(self.peak_bytes, message.memory.peak_bytes)
        self.since_s = now_s

    def resume(self, now_s: float) -> Resume:
        """It goes on."""
        self.aside_s = self.aside_until(now_s)
        self.since_s = None
        return Resume(self.executed, self.rng_state)

    def aside_until(self, now_s: float) -> float:
        """Seconds between its runs."""
        return self.aside_s + (0.0 if self.since_s is None else now_s - self.since_s)

    def whole(self, done: SegmentDone) -> SegmentDone:
        """The answer of its last run, as if there had been no other."""
        return replace(
            done,
            node_start_s=[*self.node_start_s, *(self.run_s + seconds for seconds in done.node_start_s)],
            node_end_s=[*self.node_end_s, *(self.run_s + seconds for seconds in done.node_end_s)],
            load_s=self.load_s + done.load_s,
            run_s=self.run_s + done.run_s,
            memory=self.fullest(done.memory),
        )

    def fullest(self, memory: WorkerMemory) -> WorkerMemory:
        """With the peak of all runs."""
        return replace(memory, peak_bytes=max(self.peak_bytes, memory.peak_bytes))
