"""Recent usage of the devices by account, as the Queue page draws it."""

from __future__ import annotations

import pytest
from accounts import account

from djinn_lab.dashboard.queueing.history import QueueHistory, RecentUse
from djinn_lab.protocol.rest.queue import QueueView, RunningJob


def watched(*queues: QueueView) -> list[RecentUse]:
    history = QueueHistory()
    for queue in queues:
        history.note("pool", queue)
    return history.recent()


def at(now: float, ann_s: float, *running: RunningJob) -> QueueView:
    accounts = (account("ann", rank=1, device_s=ann_s), account("bob", rank=2))
    return QueueView(now=now, accounts=accounts, running=running)


def test_a_long_cell_counts_while_it_runs_not_when_it_ends() -> None:
    """The pool adds to an account when a cell ends or is parked."""
    cell = RunningJob("1", account="ann", since=0.0)
    found = watched(at(100.0, 0.0, cell), at(106.0, 0.0, cell), at(112.0, 108.0))
    assert [use.devices["ann"] for use in found] == pytest.approx([1.0, 8 / 12])


def test_a_gang_counts_with_all_its_devices_and_even_use_is_even() -> None:
    gang = RunningJob("1", account="ann", since=0.0, members=("cpu:1",))
    pair = [RunningJob(str(number), account="bob", since=0.0) for number in (2, 3)]
    [use] = watched(at(10.0, 0.0, gang, *pair), at(20.0, 0.0, gang, *pair))
    assert use.devices == pytest.approx({"ann": 2.0, "bob": 2.0})
    assert use.jain == pytest.approx(1.0)
