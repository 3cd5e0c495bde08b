"""A running pool's own history as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from djinn_lab.jobs import RANKS
from djinn_lab.jobs.request import Demand, Node
from djinn_lab.simulator.queue.workload import BrokenLine, Trace, TraceJob


class _Used(msgspec.Struct, frozen=True):
    """Of a job, as the pool's API tells it."""

    job: str
    account: str
    priority: str
    submitted_at: float
    run_s: float
    predicted_s: float | None = None


def trace_of_pool(used: Iterable[Mapping[str, Any]], devices: Iterable[str]) -> Trace:
    """``used``: what ended jobs used, as ``/v1/usage`` tells it. Every device is a node. What a cell waited
    for its own notebook between its segments is not part of its run time."""
    jobs: list[TraceJob] = []
    broken: list[BrokenLine] = []
    for number, told in enumerate(used, 1):
        try:
            known = msgspec.convert(dict(told), _Used)
            jobs.append(
                TraceJob(
                    job=known.job,
                    submit_s=known.submitted_at,
                    run_s=max(0.0, known.run_s),
                    demand=Demand(),
                    account=known.account,
                    estimate_s=known.predicted_s,
                    rank=RANKS[known.priority],
                )
            )
        except (msgspec.ValidationError, KeyError) as error:
            broken.append(BrokenLine(number, str(error)))
    ordered = tuple(sorted(jobs, key=lambda job: job.submit_s))
    return Trace("this pool", ordered, {"": tuple(Node(name) for name in devices)}, tuple(broken))
