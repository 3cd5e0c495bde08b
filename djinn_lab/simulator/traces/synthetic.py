"""Made-up load: for formulas of queueing theory, and as large as one likes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

import msgspec

from djinn_lab.jobs.request import Demand
from djinn_lab.simulator.queue.workload import Trace, TraceJob, equal_nodes

RunTimes = Literal["exponential", "constant", "lognormal"]


class Synthetic(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a synthetic load: Poisson arrivals at ``load`` times what the devices can do. ``run_s``:
    the mean; ``sigma``: of the logarithm, where run times are lognormal. ``sizes``: gangs and how many of a
    hundred jobs have them. ``users``: the n-th submits in proportion to 1/n. ``estimate_sigma``: error of
    the estimates' logarithm; None: there are none."""

    name: str = "synthetic"
    jobs: int = 10_000
    nodes: int = 1
    devices_per_node: int = 8
    load: float = 0.8
    run_s: float = 600.0
    run_times: RunTimes = "lognormal"
    sigma: float = 2.0
    sizes: tuple[tuple[int, int], ...] = ((1, 100),)
    users: int = 1
    estimate_sigma: float | None = 0.0
    seed: int = 1

    @property
    def arrivals_per_s(self) -> float:
        mean = sum(size * part for size, part in self.sizes) / sum(part for _, part in self.sizes)
        return self.load * self.nodes * self.devices_per_node / (self.run_s * mean)

    def trace(self) -> Trace:
        """Return the trace; jobs are drawn when they are iterated over, the same each time."""
        return Trace(self.name, _Jobs(self), {"": equal_nodes(self.nodes, self.devices_per_node)})


class _Jobs:
    def __init__(self, settings: Synthetic) -> None:
        self._settings = settings

    def __len__(self) -> int:
        return self._settings.jobs

    def __iter__(self) -> Iterator[TraceJob]:
        made = self._settings
        random = Random(f"{made.name}-{made.seed}")
        sizes, parts = zip(*made.sizes, strict=True)
        demands = {size: Demand(members=size, members_min=size) for size in sizes}
        users = [f"user{number:03}" for number in range(1, made.users + 1)]
        popularity = [1 / number for number in range(1, made.users + 1)]
        now_s, rate = 0.0, made.arrivals_per_s
        for number in range(made.jobs):
            now_s += random.expovariate(rate)
            run_s = _run_s(random, made)
            estimate_s = None
            if made.estimate_sigma is not None:
                estimate_s = run_s * random.lognormvariate(0.0, made.estimate_sigma)
            (size,) = random.choices(sizes, parts)
            (user,) = random.choices(users, popularity)
            yield TraceJob(str(number), now_s, run_s, demands[size], user, estimate_s)


def _run_s(random: Random, made: Synthetic) -> float:
    if made.run_times == "constant":
        return made.run_s
    if made.run_times == "exponential":
        return random.expovariate(1 / made.run_s)
    return made.run_s * random.lognormvariate(-made.sigma * made.sigma / 2, made.sigma)
