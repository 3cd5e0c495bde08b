"""The queue page's tables, as rows."""

from __future__ import annotations

from djinn_lab.dashboard.queue_records import Account, Limits, Queue, RunningCell, WaitingCell
from djinn_lab.dashboard.queue_tables import account_rows, running_rows, waiting_rows

TOO_MANY = "Accounts of the pool are guaranteed 5 devices together, and the pool has 4: not all can."


def test_guarantees_and_classes_are_shown_where_there_are_any() -> None:
    accounts = (
        Account("ann", rank=1, limits=Limits(devices_max=3, devices_guaranteed=2), overcommitted=TOO_MANY),
        Account("bob", rank=2, limits=Limits(devices_guaranteed=0)),
    )
    queue = Queue(
        now=10.0,
        policy="ours",
        accounts=accounts,
        waiting=(WaitingCell("1", priority="NORMAL", quality="BURSTABLE"), WaitingCell("2", priority="LOW")),
        running=(RunningCell("3", priority="SCAVENGER", quality="BEST_EFFORT"),),
    )
    assert [row["limits"] for row in account_rows(queue)] == [
        f"guaranteed devices: 2, devices at most: 3. {TOO_MANY}",
        "",
    ]
    assert [row["priority"] for row in waiting_rows(queue, {})] == ["normal, burstable", "low"]
    assert [row["priority"] for row in running_rows(queue, {})] == ["scavenger, best effort"]


def test_device_time_counts_what_runs_now() -> None:
    """A gang's on all its devices."""
    gang = RunningCell("1", account="ann", since=6.0, members=("cpu:1", "cpu:2"))
    accounts = (Account("ann", rank=1, used=(3.0, 0.0, 0.0)), Account("bob", rank=2, used=(2.0, 0.0, 0.0)))
    queue = Queue(now=10.0, policy="ours", accounts=accounts, running=(gang, RunningCell("2", account="bob")))
    assert [row["used"]["sort"] for row in account_rows(queue)] == [15.0, 2.0]
