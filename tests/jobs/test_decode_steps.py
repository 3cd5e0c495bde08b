"""Decode steps and prefills of one rank, on devices that they share."""

from __future__ import annotations

import pytest
from driven_pool import DrivenPool, device_nodes, request
from msgspec.structs import replace

from djinn_lab.jobs.decision import POLICIES, QueuePolicy
from djinn_lab.jobs.fairness import Limits

DEFAULT = POLICIES["default"]
OTHERS = replace(DEFAULT, preempts=("rank", "fairness", "shorter"))


def shared_device(policy: QueuePolicy = DEFAULT) -> DrivenPool:
    """Return a pool of one device, whose account ``agent`` has had ten minutes of it, and ``ann`` nothing."""
    pool = DrivenPool(device_nodes(1), policy, park_s=0.0)
    pool.arrive(request("before", 0, account="agent", seconds=600.0))
    pool.run()
    return pool


def prefill_and_step(
    pool: DrivenPool, *, prefill_s: float = 10.0, step_s: float = 0.05, rank: int = 2
) -> float:
    """Let a decode step come 20 ms after a prefill began, and return how long it waits."""
    pool.arrive(
        request("prefill", 1, account="ann", at_s=600.0, seconds=prefill_s, phase="prefill", rank=rank)
    )
    pool.arrive(request("step", 2, account="agent", at_s=600.02, seconds=step_s, phase="decode"))
    pool.run()
    return pool.first_start_s["step"] - 600.02


def test_step_goes_before_a_prefill_of_an_account_that_had_less() -> None:
    assert prefill_and_step(shared_device(OTHERS)) > 9
    assert prefill_and_step(shared_device()) == pytest.approx(0.03)


def test_prefill_runs_as_long_as_the_step_before_it_stops() -> None:
    assert prefill_and_step(shared_device(), step_s=0.07) == pytest.approx(0.05)
    assert prefill_and_step(shared_device(), step_s=0.001) == pytest.approx(0.0)


def test_prefill_ends_among_reads_without_end() -> None:
    """Each takes no time to speak of, and the next one comes at once."""
    pool = shared_device()
    pool.arrive(request("prefill", 1, account="ann", at_s=600.0, seconds=1.0, phase="prefill"))
    for number in range(2, 2002):
        at_s = 600.0 + 0.001 * number
        pool.arrive(
            request(f"read{number}", number, account="agent", at_s=at_s, seconds=1e-4, phase="decode")
        )
    pool.run()
    assert pool.ended_s["prefill"] < 600.0 + 1.2


def test_long_step_waits_for_the_minimum_run_time_at_most() -> None:
    assert prefill_and_step(shared_device(), step_s=2.0) == pytest.approx(DEFAULT.min_runtime_s - 0.02)


def test_step_of_unknown_run_time_is_taken_for_short() -> None:
    pool = shared_device()
    pool.arrive(request("prefill", 1, account="ann", at_s=600.0, phase="prefill"))
    step = request("step", 2, account="agent", at_s=600.02, seconds=None, phase="decode")
    pool.arrive(step, runs_s=0.05)
    pool.run()
    assert pool.first_start_s["step"] == pytest.approx(600.0 + DEFAULT.min_runtime_s)


def test_step_that_is_longer_than_the_prefill_waits() -> None:
    assert prefill_and_step(shared_device(), prefill_s=1.0, step_s=2.0) > 0.9


def test_better_rank_of_a_prefill_counts_more() -> None:
    assert prefill_and_step(shared_device(), rank=1) > 9


def test_guaranteed_device_is_kept() -> None:
    pool = shared_device()
    pool.shares.set_limits("ann", Limits(devices_guaranteed=1))
    assert prefill_and_step(pool) > 9


def test_step_at_its_accounts_limit_preempts_nothing() -> None:
    pool = shared_device()
    pool.shares.set_limits("agent", Limits(devices_max=0))
    pool.arrive(request("prefill", 1, account="ann", at_s=600.0, phase="prefill"))
    pool.arrive(request("step", 2, account="agent", at_s=600.02, seconds=0.05, phase="decode"))
    pool.run(until_s=605.0)
    assert "step" in pool.cluster.waiting
    assert not pool.preemptions


def test_prefill_does_not_preempt_the_step_that_stopped_it() -> None:
    pool = shared_device(replace(DEFAULT, fair_margin_s=0.0))
    prefill_and_step(pool, step_s=0.5)
    assert [made[1:] for made in pool.preemptions] == [("prefill", "step")]


def test_steps_leave_half_of_the_device_to_a_prefill() -> None:
    """However many come, one after the other, each the moment the last one ends."""
    pool = shared_device()
    pool.arrive(request("prefill", 1, account="ann", at_s=600.0, seconds=10.0, phase="prefill"))
    for number in range(2, 402):
        at_s = 600.0 + 0.05 * number
        pool.arrive(
            request(f"step{number}", number, account="agent", at_s=at_s, seconds=0.05, phase="decode")
        )
    pool.run()
    assert pool.ended_s["prefill"] < 600.0 + 2 * 10.0 + 1.0


def test_steps_beside_many_waiting_jobs_preempt_at_once() -> None:
    """Those are of accounts that had less, and come first in the order."""
    pool = shared_device()
    pool.arrive(request("prefill", 1, account="ann", at_s=600.0, phase="prefill"))
    for number in range(2, 22):
        more = {"account": f"user{number}", "phase": "prefill" if number % 2 else ""}
        pool.arrive(request(f"other{number}", number, at_s=600.0, seconds=60.0, **more))
    pool.arrive(request("step", 50, account="agent", at_s=600.02, seconds=0.05, phase="decode"))
    pool.run()
    assert pool.first_start_s["step"] == pytest.approx(600.05)
