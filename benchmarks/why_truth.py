"""Measure how much of what the pool says about waiting jobs comes true, in simulated pools of the engine."""

from __future__ import annotations

from collections import Counter

import msgspec

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.jobs import Priority
from djinn_lab.simulator.agents import Agents, Habits
from djinn_lab.simulator.pool import SimulatedPool
from djinn_lab.simulator.truth import AS_COMPUTED, EXPECTED, UNPREDICTED, Truth, Witness

NAME = "why-truth"
GOAL = Goal(0.1)
LOOKS_EVERY_S = 0.7
SECONDS, SECONDS_QUICK = 90.0, 12.0
LAST_TURNS_S = 15.0
"""So long before the end no turn begins any more, so that what is claimed last can come true."""
LEAST = 1e-3
"""A part of nothing is counted as this, so that it has a ratio."""
URGENT = {
    **{f"agent{number}": Priority.CRITICAL for number in range(2)},
    **{f"agent{number}": Priority.HIGH for number in range(2, 6)},
    **{f"agent{number}": Priority.SCAVENGER for number in range(16, 20)},
}


class Scene(msgspec.Struct, frozen=True):
    """Two devices, and agents that keep them busy."""

    name: str
    agents: int
    memory_mib: int
    host_mib: int
    disk_mib: int
    habits: Habits


SCENES = (
    Scene(
        "short cells, state on three tiers",
        8,
        *(200, 100, 300),
        Habits(state_mib=55, cell_s=(0.03, 0.05), tool_s=(0.2, 0.2), estimate_sigma=0.3),
    ),
    Scene(
        "half of the state on the host",
        14,
        *(200, 400, 0),
        Habits(state_mib=55, cell_s=(0.03, 0.3), tool_s=(0.2, 1.0), estimate_sigma=0.3),
    ),
    Scene(
        "long cells, all fit",
        20,
        *(1000, 1000, 0),
        Habits(state_mib=10, cell_s=(0.5, 4.0), tool_s=(0.5, 2.0), estimate_sigma=0.3),
    ),
    Scene(
        "long cells of four priorities",
        20,
        *(1000, 1000, 0),
        Habits(state_mib=10, cell_s=(0.5, 4.0), tool_s=(0.5, 2.0), estimate_sigma=0.3, priorities=URGENT),
    ),
    Scene(
        "more sessions than all tiers hold",
        18,
        *(200, 100, 300),
        Habits(state_mib=55, cell_s=(0.03, 0.2), tool_s=(0.2, 0.5), estimate_sigma=0.3),
    ),
    Scene(
        "forty agents",
        40,
        *(1000, 1000, 0),
        Habits(state_mib=10, cell_s=(0.1, 0.5), tool_s=(0.5, 3.0), estimate_sigma=0.3),
    ),
)


def measure(bench: Bench) -> list[Figure]:
    seconds = SECONDS_QUICK if bench.quick else SECONDS
    found = [_truths(scene, seconds, seed) for seed, scene in enumerate(SCENES)]
    shown = [[truth for truth in truths if not truth.kind.startswith("(")] for truths in found]
    return [
        figure(
            NAME,
            "sentences on why a cell waits that did not come true",
            "part",
            {OURS: [_false(truths) for truths in shown]},
            [GOAL],
            values=_by_kind(found),
        ),
        figure(
            NAME,
            "expected starts that were wrong",
            "part",
            {
                OURS: [_false([one for one in truths if one.kind == EXPECTED]) for truths in found],
                AS_COMPUTED: [_false([one for one in truths if one.kind == AS_COMPUTED]) for truths in found],
            },
            not_predicted=sum(one.looks for truths in found for one in truths if one.kind == UNPREDICTED),
        ),
    ]


def _truths(scene: Scene, seconds: float, seed: int) -> list[Truth]:
    pool = SimulatedPool(2, scene.memory_mib, scene.host_mib, scene.disk_mib, link_mib_per_s=800)
    witness = Witness(pool)
    last_s = max(0.5 * seconds, seconds - LAST_TURNS_S)
    Agents(pool, scene.agents, scene.habits, seed=seed, last_s=last_s).run(
        seconds, witness.look, LOOKS_EVERY_S
    )
    return witness.truths()


def _false(truths: list[Truth]) -> float:
    looks = sum(one.looks for one in truths)
    return max(LEAST, sum(one.looks - one.held for one in truths) / looks) if looks else LEAST


def _by_kind(found: list[list[Truth]]) -> dict[str, dict[str, int]]:
    held: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    for truths in found:
        for truth in truths:
            held[truth.kind] += truth.held
            looks[truth.kind] += truth.looks
    return {kind: {"held": held[kind], "looks": looks[kind]} for kind in sorted(looks)}
