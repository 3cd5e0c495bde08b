"""What the pool says about waiting jobs comes true, in simulated pools of the engine."""

from __future__ import annotations

from djinn_lab import jobs
from djinn_lab.jobs import Priority
from djinn_lab.simulator.agents import Agents, Habits
from djinn_lab.simulator.pool import SimulatedPool
from djinn_lab.simulator.truth import AS_COMPUTED, EXPECTED, UNPREDICTED, Truth, Witness

PRIORITIES = {
    **{f"agent{number}": Priority.CRITICAL for number in range(2)},
    **{f"agent{number}": Priority.SCAVENGER for number in range(12, 16)},
}
LONG = Habits(state_mib=10, cell_s=(0.5, 4.0), tool_s=(0.5, 2.0), estimate_sigma=0.3, priorities=PRIORITIES)
CROWDED = Habits(state_mib=55, cell_s=(0.03, 0.2), tool_s=(0.2, 0.5), estimate_sigma=0.3)


def truths(pool: SimulatedPool, count: int, habits: Habits, seed: int = 0) -> dict[str, Truth]:
    witness = Witness(pool)
    Agents(pool, count, habits, seed=seed, last_s=35.0).run(50.0, witness.look)
    return {truth.kind: truth for truth in witness.truths()}


def test_predicted_starts_come_true() -> None:
    found = truths(SimulatedPool(2, 1000, 1000, 0, 800), 16, Habits(state_mib=10, cell_s=(0.2, 0.8)))
    assert found[EXPECTED].looks > 50
    assert found[EXPECTED].rate > 0.75, found[EXPECTED].false
    assert found["others are ahead"].rate > 0.8, found["others are ahead"].false


def test_where_urgent_cells_keep_coming_starts_of_others_are_not_promised() -> None:
    found = truths(SimulatedPool(2, 1000, 1000, 0, 800), 16, LONG)
    assert found[UNPREDICTED].looks > found[EXPECTED].looks
    wrong = found[EXPECTED].looks - found[EXPECTED].held
    assert wrong < 0.2 * (found[AS_COMPUTED].looks - found[AS_COMPUTED].held)


def test_what_is_said_of_memory_comes_true() -> None:
    found = [truths(SimulatedPool(2, 200, 100, 300, 800), 18, CROWDED, seed) for seed in range(3)]
    for kind in (
        "waits for a session to close",
        "waits for a close or freed values",
        "others are evicted",
        "others wait before it",
    ):
        of_kind = [one[kind] for one in found if kind in one]
        assert sum(one.looks for one in of_kind) > 15
        rate = sum(one.held for one in of_kind) / sum(one.looks for one in of_kind)
        assert rate >= 0.8, (kind, [one.false for one in of_kind])


def test_a_cell_whose_state_is_brought_is_not_said_to_wait_for_ever() -> None:
    found = truths(SimulatedPool(2, 150, 600, 0, 800), 12, CROWDED)
    never = found.get("does not start by itself")
    assert never is None or never.rate == 1.0, never


def test_cordoned_devices_are_named_with_what_opens_them() -> None:
    pool = SimulatedPool(1, 100)
    pool.open("ann")
    pool.send(jobs.DeviceCordoned(0.0, "cpu:0", True))
    pool.submit("a", "ann")
    snapshot = pool.queue.decision(pool.now_s)
    assert not snapshot.decide().starts
    assert "cordoned" in pool.queue.explain("a")
