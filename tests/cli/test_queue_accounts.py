"""What ``djinn-lab queue`` lists: which accounts of many, and how long cells have waited."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_lab.cli import queue as queue_command
from djinn_lab.cli.queue import ACCOUNTS_MAX, most_used, set_share, show_queue
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import OptionError
from djinn_lab.jobs.fairness import AccountView, Amounts, Limits
from djinn_lab.jobs.fairness.limits import check_limits
from djinn_lab.protocol.rest.queue import QueueView, WaitingJob


def view(number: int, device_s: float) -> AccountView:
    used = Amounts(device_s=device_s)
    return AccountView(f"course/student{number:03}", 1.0, 0.01, used, 0.0, 0.0, number, used, Limits())


def test_most_used_accounts_are_kept_in_the_order_of_the_tree() -> None:
    views = [view(number, float(number % 7)) for number in range(ACCOUNTS_MAX + 50)]
    shown = most_used(views)
    assert len(shown) == ACCOUNTS_MAX
    assert shown == [one for one in views if one in shown]
    left_out = [one for one in views if one not in shown]
    assert max(one.used.device_s for one in left_out) <= min(one.used.device_s for one in shown)


def test_few_accounts_are_all_listed() -> None:
    views = [view(number, 0.0) for number in range(3)]
    assert most_used(views) == views


def test_waiting_cells_have_the_time_that_they_have_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        def queue(self) -> QueueView:
            return QueueView(now=100.0, waiting_count=1, waiting=(WaitingJob("a", waited_s=60.0),))

    shown: dict[str, Any] = {}

    def keep(title: str, headings: Any, rows: Any) -> None:
        shown[title] = [dict(zip(headings, row, strict=True)) for row in rows]

    monkeypatch.setattr(PoolClient, "find", Pool)
    monkeypatch.setattr(queue_command, "print_table", keep)
    show_queue()
    assert [row["wait"] for row in shown["Waiting"]] == ["1 min 0 s"]


@pytest.mark.parametrize("option", ["weight", "devices", "devices_soft", "guaranteed", "device_seconds"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_share_takes_numbers_alone(option: str, value: float) -> None:
    """JSON has no number for the first two: they would count as left out, and lift a limit."""
    with pytest.raises(OptionError, match="is no number from 0 on"):
        set_share("ann", **{option: value})


@pytest.mark.parametrize("name", ["devices_max", "devices_soft", "device_s_max", "queued_max"])
def test_a_limit_below_0_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} -1 for ann; it must be a number from 0 on"):
        check_limits("ann", Limits(**{name: -1}))
