"""The queue page's tables, as rows."""

from __future__ import annotations

from accounts import account

from djinn_lab.dashboard.queueing.tables import account_rows, reservation_rows, running_rows, waiting_rows
from djinn_lab.jobs.decision import CalendarReservation
from djinn_lab.jobs.fairness import Limits
from djinn_lab.protocol.rest.queue import QueueView, RunningJob, WaitingJob

TOO_MANY = "Accounts of the pool are guaranteed 5 devices together, and the pool has 4: not all can."


def test_guarantees_and_classes_are_shown_where_there_are_any() -> None:
    accounts = (
        account("ann", rank=1, limits=Limits(devices_max=3, devices_guaranteed=2), overcommitted=TOO_MANY),
        account("bob", rank=2, limits=Limits(devices_guaranteed=0)),
    )
    queue = QueueView(
        now=10.0,
        policy="default",
        accounts=accounts,
        waiting=(WaitingJob("1", priority="NORMAL", qos="BURSTABLE"), WaitingJob("2", priority="LOW")),
        running=(RunningJob("3", priority="SCAVENGER", qos="BEST_EFFORT"),),
    )
    assert [row["limits"] for row in account_rows(queue)] == [
        f"guaranteed devices: 2, devices at most: 3. {TOO_MANY}",
        "",
    ]
    assert [row["priority"] for row in waiting_rows(queue, {})] == ["normal, burstable", "low"]
    assert [row["priority"] for row in running_rows(queue, {})] == ["scavenger, best effort"]


def test_parent_account_with_limits_has_a_row_with_the_totals_of_its_children() -> None:
    accounts = (
        account("speech", limits=Limits(devices_guaranteed=1)),
        account("vision", share=0.5, dominant=0.3, limits=Limits(devices_guaranteed=2)),
        account("vision/ann", rank=3, dominant=0.2, device_s=20.0),
        account("vision/train"),
        account("vision/train/bob", rank=2, dominant=0.1, device_s=10.0),
        account("visions", rank=1, dominant=0.1, device_s=5.0),
    )
    waiting = (WaitingJob("1", account="vision/ann"), WaitingJob("2", account="visions"))
    running = (RunningJob("3", account="vision/train/bob"),)
    rows = account_rows(QueueView(now=10.0, accounts=accounts, waiting=waiting, running=running))
    assert [row["account"] for row in rows] == [
        "visions",
        "vision/…",
        "vision/train/bob",
        "vision/ann",
        "speech/…",
    ]
    vision = rows[1]
    assert (vision["limits"], vision["turn"], vision["share"]["text"]) == (
        "guaranteed devices: 2",
        None,
        "50%",
    )
    assert (vision["used"]["sort"], vision["part"]["text"]) == (30.0, "75%")
    assert (vision["waiting"], vision["running"]) == (1, 1)
    assert (rows[4]["used"]["sort"], rows[4]["waiting"], rows[4]["limits"]) == (0, 0, "guaranteed devices: 1")


def test_device_time_counts_what_runs_now() -> None:
    """A gang's on all its devices."""
    gang = RunningJob("1", account="ann", since=6.0, members=("cpu:1", "cpu:2"))
    accounts = (
        account("ann", rank=1, device_s=3.0),
        account("bob", rank=2, device_s=2.0),
    )
    queue = QueueView(
        now=10.0, policy="default", accounts=accounts, running=(gang, RunningJob("2", account="bob"))
    )
    assert [row["used"]["sort"] for row in account_rows(queue)] == [15.0, 2.0]


def test_reservations_are_listed_before_and_during_but_not_after() -> None:
    made = (
        CalendarReservation(
            "later", frozenset(("cpu:1", "cpu:0")), 130.0, 7300.0, frozenset(("vision", "speech"))
        ),
        CalendarReservation("now", frozenset(("cpu:0",)), 0.0, 160.0, frozenset(("teaching",))),
        CalendarReservation("over", frozenset(("cpu:0",)), 0.0, 100.0, frozenset(("teaching",))),
    )
    first, second = reservation_rows(QueueView(now=100.0, reservations=made))
    assert (first["name"], first["begins"]["text"], first["ends"]["text"]) == (
        "now",
        "has begun",
        "1 min 0 s",
    )
    assert (second["devices"], second["accounts"]) == ("cpu:0, cpu:1", "speech, vision")
    assert (second["begins"]["text"], second["ends"]["text"]) == ("30 s", "2 h 0 min")


def test_account_shares_sort_by_number() -> None:
    accounts = tuple(account(name, rank=1, dominant=part) for name, part in (("ann", 0.1), ("bob", 0.9)))
    rows = account_rows(QueueView(now=10.0, accounts=accounts))
    assert {row["id"]: row["part"]["sort"] for row in rows} == {"ann": 0.1, "bob": 0.9}


def test_cell_without_a_predicted_start_says_why_and_sorts_last() -> None:
    waiting = (
        WaitingJob("1", unpredicted="unknown: later cells may go first", sentence="Behind 2. And more."),
        WaitingJob("2", expected_at=19.0),
    )
    unknown, known = (row["expected"] for row in waiting_rows(QueueView(now=10.0, waiting=waiting), {}))
    assert (unknown["text"], unknown["title"]) == ("unknown: later cells may go first", "Behind 2. And more.")
    assert known["text"] == "9 s"
    assert unknown["sort"] > known["sort"]


def test_cell_without_a_predicted_end_says_why_and_sorts_last() -> None:
    running = (RunningJob("1", unpredicted="unknown: longer than predicted"), RunningJob("2", ends_at=19.0))
    unknown, known = (row["left"] for row in running_rows(QueueView(now=10.0, running=running), {}))
    assert (unknown["text"], known["text"]) == ("unknown: longer than predicted", "9 s")
    assert unknown["sort"] > known["sort"]
