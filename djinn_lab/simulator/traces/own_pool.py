"""A running pool's own history as a trace."""

from __future__ import annotations

from collections.abc import Iterable

from djinn_lab.jobs import RANKS
from djinn_lab.jobs.request import ComputeNode, Demand
from djinn_lab.protocol.rest.jobs import JobUsage
from djinn_lab.simulator.queue.workload import BrokenLine, Trace, TraceJob


def trace_of_pool(used: Iterable[JobUsage], devices: Iterable[str]) -> Trace:
    """Make a trace of what a pool's ended jobs used. Every device is a node. What a cell waited for its own
    notebook between its segments is not part of its run time."""
    jobs: list[TraceJob] = []
    broken: list[BrokenLine] = []
    for number, known in enumerate(used, 1):
        try:
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
        except KeyError as error:
            broken.append(BrokenLine(number, f"no priority is called {error}"))
    ordered = tuple(sorted(jobs, key=lambda job: job.submit_s))
    return Trace("this pool", ordered, {"": tuple(ComputeNode(name) for name in devices)}, tuple(broken))
