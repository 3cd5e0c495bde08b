"""Agents that compute and wait in turns: a session moves where that pays, and none waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from sampled import sampled

from djinn_lab import engine, jobs, memory
from djinn_lab.simulator.agents import Agents, Habits
from djinn_lab.simulator.pool import SimulatedPool


class CountedPool(SimulatedPool):
    """``kinds``: of copies, how many there were. ``unused``: sessions that were brought to their device and
    evicted again before a cell of theirs ran, once for each time."""

    def __init__(self, memory_mib: int, link_mib_per_s: int, host_mib: int, disk_mib: int) -> None:
        self.kinds: Counter[str] = Counter()
        self.unused: list[str] = []
        self._fresh: set[str] = set()
        super().__init__(2, memory_mib, host_mib, disk_mib, link_mib_per_s)

    def perform(self, command: engine.Command) -> None:
        if isinstance(command, memory.TransferCommand):
            self.kinds[type(command).__name__] += 1
        match command:
            case memory.RestoreSession():
                self._fresh.add(command.session)
            case memory.EvictSession() if command.session in self._fresh:
                self.unused.append(command.session)
            case jobs.StartSegment():
                job = self.queue.job(command.job)
                assert job is not None
                self._fresh.discard(job.session)
            case _:
                pass
        super().perform(command)


def agents_of(count: int, memory_mib: int) -> tuple[CountedPool, Agents]:
    pool = CountedPool(memory_mib, 200, host_mib=4000, disk_mib=0)
    return pool, Agents(pool, count, Habits())


def crowd(
    count: int, *, host_mib: int, disk_mib: int, priorities: Mapping[str, jobs.Priority] | None = None
) -> tuple[CountedPool, Agents]:
    """Agents with more state than the devices hold, whose tools take less time than a copy."""
    pool = CountedPool(200, 800, host_mib, disk_mib)
    habits = Habits(state_mib=55, cell_s=(0.036, 0.036), tool_s=(0.2, 0.2), priorities=priorities or {})
    return pool, Agents(pool, count, habits)


def test_agents_that_all_fit_stay_where_they_are() -> None:
    """The agents' cells wait for each other, which takes less time than a move."""
    pool, agents = agents_of(32, memory_mib=1000)
    agents.run(60.0)
    assert len(pool.ended_s) > 300
    assert pool.kinds["EvictSession"] == pool.kinds["RestoreSession"] == 0


def test_agents_whose_copies_take_next_to_nothing_stay_where_they_are() -> None:
    """A move takes hundredths of a second, as do the waits for each other."""
    pool = CountedPool(400, 800, host_mib=400, disk_mib=0)
    agents = Agents(pool, 10, Habits(state_mib=8, cell_s=(0.03, 0.2), tool_s=(0.5, 3.0)))
    agents.run(60.0)
    assert len(pool.ended_s) > 200
    assert pool.kinds["EvictSession"] == 0


def test_agents_that_do_not_fit_move_in_a_small_part_of_their_turns() -> None:
    pool, agents = agents_of(32, memory_mib=500)
    agents.run(60.0)
    assert len(pool.ended_s) > 300
    assert 0 < pool.kinds["RestoreSession"] < len(pool.ended_s) / 5


def test_a_session_moves_where_waiting_would_take_much_longer() -> None:
    pool = SimulatedPool(2, 100, link_mib_per_s=100)
    for session in ("ann", "bob", "carl"):
        pool.open(session)
    pool.submit("first", "ann", seconds=0.1, mib=20)
    pool.run(1.0)
    home = pool.engine.accounts.home_of("ann")
    pool.submit("long", "bob", seconds=60.0, target=home)
    pool.run(2.0)
    pool.submit("second", "ann", seconds=0.1)
    pool.run(5.0)
    assert pool.outcomes["second"] == "DONE"
    assert pool.engine.accounts.home_of("ann") != home


def test_restored_state_stays_until_its_cell_ran() -> None:
    pool, agents = crowd(14, host_mib=400, disk_mib=0)
    agents.run(20.0)
    assert pool.kinds["RestoreSession"] > 200
    assert len(pool.unused) <= 2


def test_an_urgent_cell_does_not_wait_for_state_that_was_restored_for_others() -> None:
    critical = {"agent3": jobs.Priority.CRITICAL}
    _, agents = crowd(14, host_mib=400, disk_mib=0, priorities=critical)
    agents.run(20.0)
    urgent, others = agents.waited_s("agent3"), agents.waited_s("agent4")
    assert len(urgent) > len(others)
    assert sorted(urgent)[len(urgent) // 2] < sorted(others)[len(others) // 2]


def agents_with_long_cells(seed: int, priorities: Mapping[str, jobs.Priority]) -> Agents:
    """Ten agents on two devices that hold three sessions each; their cells take longer than their tools."""
    pool = CountedPool(200, 800, host_mib=400, disk_mib=0)
    habits = Habits(state_mib=55, cell_s=(0.03, 0.3), tool_s=(0.0, 0.1), priorities=priorities)
    agents = Agents(pool, 10, habits, seed=seed)
    agents.run(60.0)
    return agents


@pytest.mark.parametrize("seed", sampled([0, 1], [1]))
def test_equal_sessions_have_about_equal_numbers_of_turns(seed: int) -> None:
    """On whichever device the first session was admitted."""
    turns = sorted(agents_with_long_cells(seed, {}).turns.values())
    assert turns[0] > 40
    assert turns[-1] < 1.3 * turns[0]


def test_cells_behind_better_priorities_are_not_refused() -> None:
    """A preempted cell's state is restored; the cells before it are on the device and wait for their turn."""
    draw = Random(0)
    kinds = list(jobs.Priority)
    agents = agents_with_long_cells(0, {f"agent{number}": draw.choice(kinds) for number in range(10)})
    assert set(agents.pool.outcomes.values()) == {"DONE"}


def test_no_admitted_agent_starves_where_sessions_fill_every_tier() -> None:
    pool, agents = crowd(18, host_mib=100, disk_mib=300)
    agents.run(30.0)
    turns = sorted(agents.turns.values())
    outside = [session for session, turn in agents.turns.items() if turn == 1]
    assert len(outside) == 2
    assert turns[2] > turns[-1] / 2
    assert all("waits for one to close" in pool.queue.explain(f"{session}-0") for session in outside)


def test_a_cell_that_only_a_closed_session_would_help_says_so() -> None:
    """Nine sessions that grew after admission fill every tier of the device: no two can be swapped."""
    pool = SimulatedPool(1, 200, host_mib=100, disk_mib=300, link_mib_per_s=800)
    for number in range(9):
        pool.open(f"s{number}")
        pool.submit(f"first{number}", f"s{number}", seconds=0.01, mib=1)
        pool.run(pool.now_s + 0.5)
    for number in range(9):
        pool.submit(f"second{number}", f"s{number}", seconds=0.01, mib=60)
        pool.run(pool.now_s + 5.0)
    for number in range(9):
        pool.submit(f"third{number}", f"s{number}", seconds=0.01, mib=1)
    pool.run(pool.now_s + 5.0)
    waiting = [job.job for job, _, _ in pool.queue.waiting()]
    assert len(waiting) > 1
    assert any("a session to close" in pool.queue.explain(job) for job in waiting)
    assert not any("waits for job" in pool.queue.explain(job) for job in waiting)
    pool.close(next(f"s{number}" for number in range(9) if f"third{number}" in pool.ended_s))
    pool.run(pool.now_s + 30.0)
    assert len(pool.outcomes) == 27


def test_job_waiting_for_a_close_names_the_session_without_a_client() -> None:
    pool = SimulatedPool(1, 200, host_mib=100, link_mib_per_s=800)
    for number in range(6):
        pool.open(f"s{number}")
        pool.submit(f"first{number}", f"s{number}", seconds=0.01, mib=55)
        pool.run(pool.now_s + 1.0)
    job = next(job.job for job, _, _ in pool.queue.waiting())
    assert pool.queue.explain(job).endswith("it waits for one to close or to free values.")
    pool.send(engine.SessionDetached(pool.now_s, "s0"))
    pool.run(pool.now_s + 2.0)
    assert pool.queue.explain(job).endswith("`djinn-lab close s0` frees enough, and drops its values.")
    pool.close("s0")
    pool.run(pool.now_s + 1.0)
    assert pool.outcomes[job] == "DONE"


@pytest.mark.parametrize("seed", [4, 7, 22, 25, 32, 102])
def test_growing_sessions_on_full_tiers_all_finish(seed: int) -> None:
    """Sessions of 19 MiB, some of which become twice as large, on tiers that they fill by two thirds to four
    fifths, but in lumps: no two of them can be swapped at once, and a state is restored before there is
    capacity for its cell's own memory."""
    draw = Random(seed)
    count = draw.randint(5, 8)
    pool = SimulatedPool(1, 100, draw.choice([60, 80]), draw.choice([60, 80, 120]), 200)
    for number in range(count):
        pool.open(f"s{number}")
        pool.submit(f"first{number}", f"s{number}", seconds=0.05, mib=19)
        pool.run(pool.now_s + draw.choice([0.3, 2.0]))
    for number in range(11):
        session, mib = f"s{draw.randrange(count)}", 38 if draw.random() < 0.25 else 19
        pool.submit(f"cell{number}", session, seconds=0.05, mib=mib)
        pool.run(pool.now_s + draw.choice([0.5, 9.0]))
    pool.run(pool.now_s + 20.0)
    assert len(pool.ended_s) == count + 11, [
        pool.queue.explain(job.job) for job, _, _ in pool.queue.waiting()
    ]


def test_a_small_cell_is_not_refused_for_what_larger_sessions_need() -> None:
    """Two sessions fill the device and the host, and both wait: the last one is refused, with its own
    numbers. A cell whose session has no memory yet is not refused."""
    pool = SimulatedPool(1, 100, host_mib=60, link_mib_per_s=800)
    for number in range(2):
        pool.open(f"s{number}")
        pool.submit(f"first{number}", f"s{number}", seconds=0.01, mib=1)
        pool.run(pool.now_s + 1.0)
    for number in range(2):
        pool.submit(f"grow{number}", f"s{number}", seconds=0.01, mib=60)
        pool.run(pool.now_s + 5.0)
    assert pool.outcomes == dict.fromkeys(["first0", "first1", "grow0", "grow1"], "DONE")
    pool.open("small")
    pool.submit("a", "s0", seconds=0.01, mib=1)
    pool.submit("b", "s1", seconds=0.01, mib=60)
    pool.submit("c", "small", seconds=0.01, mib=1)
    pool.run(pool.now_s + 30.0)
    assert pool.outcomes["c"] == "DONE"
    refused = pool.queue.job("b")
    assert refused is not None
    assert "needs 60.0 MiB" in refused.message
    assert "waits for a session to close or to free values" in pool.queue.explain("a")
    pool.close("s1")
    pool.run(pool.now_s + 5.0)
    assert pool.outcomes["a"] == "DONE"


def test_sessions_without_memory_start_on_a_device_that_is_uncordoned() -> None:
    """All sessions were admitted to one device while the other was cordoned, which then serves again."""
    pool = SimulatedPool(2, 200, host_mib=100, disk_mib=60, link_mib_per_s=800)
    pool.send(jobs.DeviceCordoned(0.0, "cpu:0", True))
    for number in range(8):
        pool.open(f"s{number}")
        pool.submit(f"first{number}", f"s{number}", seconds=0.01, mib=45)
        pool.run(pool.now_s + 1.0)
    outside = [f"first{number}" for number in range(8) if f"first{number}" not in pool.ended_s]
    assert len(outside) >= 2
    pool.send(jobs.DeviceCordoned(pool.now_s, "cpu:0", False))
    pool.run(pool.now_s + 5.0)
    assert [job for job in outside if job not in pool.ended_s] == []
    assert {pool.history[job][-1].device for job in outside} == {"cpu:0"}


def test_sessions_of_a_lost_device_use_it_again_once_it_returns() -> None:
    pool = SimulatedPool(2, 200, host_mib=100, disk_mib=60, link_mib_per_s=800)
    habits = Habits(state_mib=45, cell_s=(0.03, 0.05), tool_s=(0.2, 0.3))
    agents = Agents(pool, 10, habits)
    agents.run(8.0)
    pool.lose("cpu:0", 2.0)
    agents.run(40.0)
    waits = {session: max(agents.waited_s(session)) for session in agents.turns}
    assert max(waits.values()) < 12.0, waits
    assert not pool.stalls
