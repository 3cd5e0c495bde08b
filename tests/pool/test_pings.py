"""When a worker that does not answer is silent, and when it is ended."""

from __future__ import annotations

import pytest

from djinn_lab.pool.launchers.pings import Liveness, Pings


def found(pings: Pings, count: int, beside: bool) -> dict[int, Liveness]:
    answers = {number: pings.pinged(beside) for number in range(1, count + 1)}
    return {number: answer for number, answer in answers.items() if answer is not None}


@pytest.mark.parametrize(("beside", "hung"), [(False, 60), (True, 20)])
def test_a_hung_worker_is_ended_sooner_where_others_of_its_device_answer(beside: bool, hung: int) -> None:
    assert found(Pings(), 100, beside) == {5: Liveness.SILENT, hung: Liveness.HUNG}


def test_a_worker_is_ended_soon_after_others_of_its_device_answer_again() -> None:
    pings = Pings()
    assert found(pings, 30, beside=False) == {5: Liveness.SILENT}
    assert found(pings, 3, beside=True) == {1: Liveness.HUNG}


def test_a_worker_that_answers_begins_anew() -> None:
    pings = Pings()
    assert found(pings, 19, beside=True) == {5: Liveness.SILENT}
    assert pings.heard() is Liveness.HEARD
    assert found(pings, 19, beside=True) == {5: Liveness.SILENT}
