"""Samples taken in alternating rounds, and what is said of them."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Summary:
    """Percentiles of sorted samples, interpolated between neighbours, in the samples' own unit."""

    count: int
    median: float
    q1: float
    q3: float
    p99: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Of at least one sample."""
        ordered = sorted(samples)
        return cls(
            count=len(ordered),
            median=percentile(ordered, 0.5),
            q1=percentile(ordered, 0.25),
            q3=percentile(ordered, 0.75),
            p99=percentile(ordered, 0.99),
            minimum=ordered[0],
            maximum=ordered[-1],
        )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted samples; ``share`` from 0 to 1."""
    assert ordered, "no samples"
    position = share * (len(ordered) - 1)
    lower, upper = math.floor(position), math.ceil(position)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


def alternate(contenders: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: bool = True) -> Samples:
    """One sample of each contender a round. Each round begins with another contender, so that none
    always follows the same one. ``warm_up``: throw a first round away."""
    names = list(contenders)
    for name in names if warm_up else ():
        contenders[name]()
    taken: Samples = {name: [] for name in names}
    gc.collect()
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            taken[name].append(contenders[name]())
    return taken


def scaled(taken: Mapping[str, Sequence[float]], factor: float) -> Samples:
    return {name: [sample * factor for sample in samples] for name, samples in taken.items()}
