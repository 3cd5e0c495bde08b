"""A start that conservative backfilling promised is kept by the engine, whatever comes later."""

from __future__ import annotations

from random import Random

import pytest

from djinn_lab import jobs
from djinn_lab.simulator.pool import SimulatedPool

COPY_S = 0.1
"""The longest time that moving a session may take."""


def promised(pool: SimulatedPool) -> dict[str, float]:
    return {one.job: one.start_s for one in pool.queue.decision(pool.now_s).cluster.promises}


@pytest.mark.parametrize("seed", range(8))
def test_no_cell_starts_later_than_it_was_promised(seed: int) -> None:
    chance = Random(seed)
    pool = SimulatedPool(2, 1000)
    pool.send(jobs.PolicyChanged(0.0, "conservative"))
    first: dict[str, float] = {}
    for number in range(30):
        user = f"user{chance.randrange(5)}"
        pool.open(f"{user}-{number}")
        priority = chance.choice([jobs.Priority.NORMAL, jobs.Priority.NORMAL, jobs.Priority.SCAVENGER])
        pool.submit(
            f"cell{number}",
            f"{user}-{number}",
            account=user,
            priority=priority,
            seconds=chance.choice([0.5, 1.0, 4.0, 9.0]),
        )
        for _ in range(4):
            pool.run(pool.now_s + chance.uniform(0.0, 0.5))
            for job, start_s in promised(pool).items():
                first.setdefault(job, start_s)
    assert len(first) > 5
    pool.run(pool.now_s + 300.0)
    assert set(pool.outcomes.values()) == {"DONE"}
    late = {job: pool.started_s[job] - start_s for job, start_s in first.items()}
    assert max(late.values()) <= COPY_S, late
