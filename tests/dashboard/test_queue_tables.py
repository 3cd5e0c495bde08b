"""The queue page's tables, as rows."""

from __future__ import annotations

from djinn_lab.dashboard.queue_records import Account, Limits, Queue, Reservation, RunningCell, WaitingCell
from djinn_lab.dashboard.queue_tables import account_rows, reservation_rows, running_rows, waiting_rows

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


def test_reservations_that_come_and_that_have_begun_are_told_until_they_are_over() -> None:
    made = (
        Reservation("later", ("cpu:1", "cpu:0"), ("vision", "speech"), begins_s=130.0, ends_s=7300.0),
        Reservation("now", ("cpu:0",), ("teaching",), begins_s=0.0, ends_s=160.0),
        Reservation("over", ("cpu:0",), ("teaching",), begins_s=0.0, ends_s=100.0),
    )
    first, second = reservation_rows(Queue(now=100.0, reservations=made))
    assert (first["name"], first["begins"]["text"], first["ends"]["text"]) == (
        "now",
        "has begun",
        "1 min 0 s",
    )
    assert (second["devices"], second["accounts"]) == ("cpu:0, cpu:1", "speech, vision")
    assert (second["begins"]["text"], second["ends"]["text"]) == ("30.0 s", "2 h 0 min")
