"""What a profile asks of the pool's queue for its cells, and of the graph scheduler for their schedules."""

from __future__ import annotations

from typing import cast

from djinn_lab.config import Profile
from djinn_lab.jobs import Objective, Terms
from djinn_lab.scheduler import Scheduler, SchedulerProfile


def terms_of(profile: Profile) -> Terms:
    """Return the terms of a cell that asks for nothing else."""
    asked = profile.scheduler
    return Terms(objective=cast(Objective, asked.objective), reserve_fraction=asked.memory_reserve_fraction)


def terms_of_scheduler(scheduler: Scheduler) -> Terms:
    """Return the terms that a scheduler's profile asks for. A pool places a session once, so that
    ``throughput`` asks for the same device as ``latency``."""
    profile = scheduler.profile
    objective: Objective = "latency" if profile.objective == "throughput" else profile.objective
    return Terms(objective=objective, reserve_fraction=profile.reserve_fraction)


def scheduler_profile(terms: Terms) -> SchedulerProfile:
    """Return the settings of the graph scheduler that say the same."""
    return SchedulerProfile("cell", "The terms of a cell.", terms.objective, terms.reserve_fraction)


def first_choice(terms: Terms) -> str:
    """Say on which device a session with such a first cell begins."""
    near = ", free devices on one NUMA node" if terms.gang > 1 else ""
    ties = f"ties by price{near} and name"
    if terms.objective == "memory":
        rule = f"the device whose memory is filled least with it, then that with the fewest sessions ({ties})"
    elif terms.objective == "energy":
        rule = (
            "the device where it is predicted to use the fewest joules, by its run time there and what the "
            f"device draws, as operators say ({ties})"
        )
    else:
        rule = (
            "the device where it is predicted to be done first, by its speed and the number of sessions and "
            f"waiting jobs ({ties})"
        )
    return f"{rule}, where {terms.reserve_fraction:.0%} of the memory stay free, if there is one"
