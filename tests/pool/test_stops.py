"""A worker that is at an op which does not end, while its process answers the pings."""

from __future__ import annotations

import psutil
import pytest
import torch
from launcher_kit import Workers, local_site
from programs import HOLE, Script
from real_pool import wait_for

from djinn_lab.pool.launchers import device, stops
from djinn_lab.pool.launchers.stops import PINGS_BEFORE_ENDED, Stops
from djinn_lab.protocol.worker import (
    Cancel,
    Preempt,
    RunSegment,
    SegmentCancelled,
    SegmentProgress,
    SegmentStarted,
    WorkerMemory,
)

ONE = "cpu:0"
ROWS = 1000
MEMORY = WorkerMemory(0, 0, {})


def begun(*jobs: str) -> Stops:
    made = Stops()
    for job in jobs:
        made.sent(RunSegment(job, 0, f"session of {job}", b""))
    return made


@pytest.mark.parametrize("stop", [Cancel("long"), Preempt("long", 0)], ids=["cancel", "preempt"])
def test_a_stop_that_is_not_obeyed_is_named_once_its_time_is_over(stop: Cancel | Preempt) -> None:
    most = PINGS_BEFORE_ENDED[type(stop)]
    watched = begun("long", "behind it")
    assert [watched.pinged() for _ in range(2 * most)] == [None] * 2 * most  # it was not asked to stop
    watched.sent(stop)
    assert [watched.pinged() for _ in range(most - 1)] == [None] * (most - 1)
    watched.said(SegmentProgress("long", 0, 7, 0))  # an op has ended: it may be the next that stops
    assert [watched.pinged() for _ in range(most)] == [None] * (most - 1) + ["long"]


def test_a_preempted_cell_that_is_cancelled_later_is_ended_within_a_cancelled_ones_time() -> None:
    watched = begun("long")
    watched.sent(Preempt("long", 0))
    most = PINGS_BEFORE_ENDED[Cancel]
    assert [watched.pinged() for _ in range(2 * most)] == [None] * 2 * most
    watched.sent(Cancel("long"))
    assert [watched.pinged() for _ in range(most)] == [None] * (most - 1) + ["long"]


def test_a_cell_is_not_blamed_for_the_one_before_it() -> None:
    watched = begun("long", "behind it")
    watched.sent(Cancel("behind it"))
    most = PINGS_BEFORE_ENDED[Cancel]
    assert [watched.pinged() for _ in range(2 * most)] == [None] * 2 * most
    watched.sent(Cancel("long"))
    watched.said(SegmentCancelled("long", 0, 7, MEMORY))
    assert [watched.pinged() for _ in range(most)] == [None] * (most - 1) + ["behind it"]


@pytest.mark.processes
def test_a_worker_whose_op_does_not_end_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "PING_EVERY_S", 0.2)
    monkeypatch.setitem(stops.PINGS_BEFORE_ENDED, Cancel, 5)
    script = Script()
    points = script.load(torch.rand(ROWS, ROWS))
    distances = script.op(  # for a quarter of a minute, or more
        *("aten._cdist_forward.default", points, points),
        args=[HOLE, HOLE, 1.5, None],
        shape=(ROWS, ROWS),
    )
    with local_site() as site:
        workers = Workers(site)
        workers.ready(ONE)
        workers.begin(ONE, "ann", script.program(keep=(distances,)))
        workers.next(ONE, SegmentStarted)
        worker = psutil.Process(workers.launcher.health(ONE).shown["pid"])
        before_s = worker.cpu_times().user
        wait_for(lambda: worker.cpu_times().user > before_s + 0.5)  # at the op: before it, a worker stops
        workers.do(lambda: workers.launcher.cancel(ONE, "job"))
        workers.lost(ONE)
        [(_, how)] = workers.heard.deaths
        assert how == "was ended: an op of job did not end after it was asked to stop"
        script = Script()
        value = script.load(torch.ones(3))
        assert workers.values(workers.run(ONE, "bob", script.program(fetch=(value,)))) == [
            torch.ones(3).numpy().tobytes()
        ]
        workers.leave()
