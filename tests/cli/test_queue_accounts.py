"""Which accounts ``djinn-lab queue`` lists of many."""

from __future__ import annotations

from djinn_lab.cli.queue import ACCOUNTS_MAX, most_used
from djinn_lab.jobs.fairness import AccountView, Amounts, Limits


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
