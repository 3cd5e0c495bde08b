"""What became of each job, in columns: a million jobs are a few dozen megabytes."""

from __future__ import annotations

from array import array

from djinn_lab.simulator.queue.workload import TraceJob


class Records:
    """Rows run parallel and are in the order of ending. ``started_s``: for the first time."""

    def __init__(self) -> None:
        self.submitted_s = array("d")
        self.started_s = array("d")
        self.ended_s = array("d")
        self.run_s = array("d")
        self.devices = array("d")
        self.account = array("l")
        self.preempted = array("l")
        self.accounts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ended_s)

    def add(self, job: TraceJob, started_s: float, ended_s: float, preempted: int) -> None:
        self.submitted_s.append(job.submit_s)
        self.started_s.append(started_s)
        self.ended_s.append(ended_s)
        self.run_s.append(job.run_s)
        self.devices.append(job.demand.members * job.demand.device_milli / 1000)
        self.account.append(self.accounts.setdefault(job.account, len(self.accounts)))
        self.preempted.append(preempted)

    def extend(self, other: Records) -> None:
        for column in ("submitted_s", "started_s", "ended_s", "run_s", "devices", "preempted"):
            getattr(self, column).extend(getattr(other, column))
        numbers = [self.accounts.setdefault(name, len(self.accounts)) for name in other.accounts]
        self.account.extend(numbers[number] for number in other.account)
