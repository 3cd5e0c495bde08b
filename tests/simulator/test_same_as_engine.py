"""The simulator of the queue starts what the engine starts, and when: cells that hold no state."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from djinn_lab import engine, jobs, memory
from djinn_lab.jobs.fairness import ShareState
from djinn_lab.jobs.request import ComputeNode, Demand
from djinn_lab.memory import POLICIES
from djinn_lab.simulator.device import Hardware, SimulatedDevice
from djinn_lab.simulator.driver import OPS, SimulatedDriver
from djinn_lab.simulator.queue import Parking, QueueSettings, Trace, TraceJob
from djinn_lab.simulator.queue.run import simulate_with_records

JOBS = 60
WIDE = Hardware(
    memory_bytes=1 << 40,
    host_bytes=1 << 40,
    disk_bytes=0,
    link_bytes_per_s=1e9,
    disk_bytes_per_s=1e9,
    copy_latency_s=0.0,
    bookkeeping_s=0.0,
    slots=1,
)


def load(devices: int, seed: int) -> list[TraceJob]:
    """Draw a load a little above what the devices can do."""
    random, at_s, found = Random(seed), 0.0, []
    for number in range(JOBS):
        at_s += random.expovariate(devices / 1.5)
        run_s = random.uniform(0.2, 3.0)
        account = f"user{random.randrange(4)}"
        found.append(TraceJob(f"job{number}", at_s, run_s, Demand(), account, run_s))
    return found


class OnEngine(SimulatedDriver):
    """Each job is the only cell of a session. ``started_s``: by job."""

    def __init__(self, devices: int, slots: int, policy: str, trace: list[TraceJob]) -> None:
        hardware = {f"cpu:{number}": replace(WIDE, slots=slots) for number in range(devices)}
        super().__init__(hardware)
        self.jobs = {job.job: job for job in trace}
        self.started_s: dict[str, float] = {}
        self.send(engine.PoolOpened(0.0, policy, ShareState(), POLICIES["default"]))
        self.start()
        for job in trace:
            self.clock.at(job.submit_s, lambda job=job: self.submit(job))  # type: ignore[misc]

    def submit(self, job: TraceJob) -> None:
        self.send(memory.SessionOpened(self.now_s, job.job, job.account))
        segment = jobs.SegmentSubmitted(
            at_s=self.now_s,
            job=job.job,
            segment=0,
            session=job.job,
            user=job.account,
            priority=jobs.Priority.NORMAL,
            ops_total=OPS,
            final=True,
            predicted_s=job.estimate_s,
        )
        self.send(engine.SegmentArrived(self.now_s, segment, 0, kept_bytes=0))

    def begin(self, job: jobs.Job, device: SimulatedDevice) -> float:
        self.started_s[job.job] = self.now_s
        return self.jobs[job.job].run_s

    def stopped(self, job: jobs.Job, device: SimulatedDevice) -> None:
        """It leaves nothing behind."""


@pytest.mark.parametrize("policy", ["fifo", "sjf", "qssf", "easy", "conservative"])
@pytest.mark.parametrize(("devices", "slots"), [(1, 1), (1, 4), (3, 1), (2, 3)])
def test_starts_are_those_of_the_engine(policy: str, devices: int, slots: int) -> None:
    trace = load(devices * slots, seed=devices + slots)
    nodes = [ComputeNode(f"cpu:{number}", devices=slots) for number in range(devices)]
    settings = QueueSettings(estimates="exact", parking=Parking())
    _, records = simulate_with_records(Trace("load", trace), nodes, policy, settings)
    simulated = dict(zip(records.submitted_s, records.started_s, strict=True))
    pool = OnEngine(devices, slots, policy, trace)
    while len(pool.started_s) < JOBS:
        pool.step()
    assert max(simulated[job.submit_s] - job.submit_s for job in trace) > 1.0, "none waits"
    assert pool.started_s == pytest.approx({job.job: simulated[job.submit_s] for job in trace})
