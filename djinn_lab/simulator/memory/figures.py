"""Figures of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from djinn_lab.memory import Counters


@dataclass(slots=True)
class Tally:
    """Counts collected during a run. A wake-up is from the wish to the grant; ``floors_s`` runs parallel: how
    long copying the state takes at least. Those of killed sessions are infinite. ``first_tokens_s``: from the
    same wish to the first token."""

    wakes_s: list[float] = field(default_factory=list)
    floors_s: list[float] = field(default_factory=list)
    hits: int = 0
    first_tokens_s: list[float] = field(default_factory=list)
    admission_s: list[float] = field(default_factory=list)
    killed: int = 0
    finished: int = 0
    live: int = 0
    live_max: int = 0
    live_bytes_max: int = 0
    rebuilt_tokens: int = 0
    said_tokens: int = 0
    turns: int = 0


class RunFigures(msgspec.Struct, frozen=True):
    """``n``: wake-ups of sessions that hold state, without those that waited for admission. ``wake_*``: in
    seconds, infinite where sessions were killed. ``p99_floor_s``: of the session at the 99th percentile of
    sizes, the physical limit; ``p99_ratio``: over it. ``hit_rate``: without a copy to wait for.
    ``useful_swaps``: share of evictions whose capacity was used and whose session returned or still will;
    None without evictions. ``live_max``: sessions that held state at once, ``live_bytes_max`` their bytes."""

    policy: str
    workload: str
    seed: int
    n: int
    wake_p50_s: float
    wake_p99_s: float
    wake_max_s: float
    p99_floor_s: float
    p99_ratio: float
    hit_rate: float
    first_token_p50_s: float
    first_token_p99_s: float
    useful_swaps: float | None
    prefetches: int
    prefetches_on_time: int
    prefetches_late: int
    prefetches_wasted: int
    bytes_out: int
    bytes_in: int
    evictions: int
    restores: int
    admission_waits: int
    admission_p50_s: float | None
    admission_max_s: float | None
    killed: int
    finished: int
    live_max: int
    live_bytes_max: int
    rebuilt_tokens: int
    seconds: float
    tokens_per_s: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest rank; nan without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


def figures_of(
    tally: Tally, counters: Counters, policy: str, workload: str, seed: int, seconds: float
) -> RunFigures:
    wakes, floors = tally.wakes_s, tally.floors_s
    p99, floor = percentile(wakes, 0.99), percentile(floors, 0.99)
    waited = tally.admission_s
    return RunFigures(
        policy=policy,
        workload=workload,
        seed=seed,
        n=len(wakes),
        wake_p50_s=percentile(wakes, 0.5),
        wake_p99_s=p99,
        wake_max_s=max(wakes, default=math.nan),
        p99_floor_s=floor,
        p99_ratio=p99 / floor if floor else math.nan,
        hit_rate=tally.hits / len(wakes) if wakes else math.nan,
        first_token_p50_s=percentile(tally.first_tokens_s, 0.5),
        first_token_p99_s=percentile(tally.first_tokens_s, 0.99),
        useful_swaps=counters.useful_swaps / counters.evictions if counters.evictions else None,
        prefetches=counters.prefetches,
        prefetches_on_time=counters.prefetches_on_time,
        prefetches_late=counters.prefetches_late,
        prefetches_wasted=counters.prefetches_wasted,
        bytes_out=counters.bytes_out,
        bytes_in=counters.bytes_in,
        evictions=counters.evictions,
        restores=counters.restores,
        admission_waits=counters.admission_waits,
        admission_p50_s=percentile(waited, 0.5) if waited else None,
        admission_max_s=max(waited) if waited else None,
        killed=tally.killed,
        finished=tally.finished,
        live_max=tally.live_max,
        live_bytes_max=tally.live_bytes_max,
        rebuilt_tokens=tally.rebuilt_tokens,
        seconds=seconds,
        tokens_per_s=tally.said_tokens / seconds if seconds else 0.0,
    )
