"""Shares: which account is due, exactly, and whatever happens in between."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.jobs.fairness import Amounts, Capacity, Limits, ShareSettings, ShareState, ShareTree, jain
from djinn_lab.jobs.fairness.state import WEEK_S

ACCOUNTS = ("a/x/1", "a/x/2", "a/y/3", "b/z/4", "b/z/5", "c")
CHARGES = st.lists(
    st.tuples(
        st.sampled_from(ACCOUNTS),
        st.floats(0, 50 * WEEK_S),
        st.floats(0, 1e6),
        st.floats(0, 1e12),
    ),
    max_size=12,
)


def tree(*charges: tuple[str, float, float], half_life_s: float = WEEK_S) -> ShareTree:
    """Charges are (account, at_s, device_s)."""
    found = ShareTree(ShareState(ShareSettings(half_life_s), Capacity(devices=4, memory_bytes=1e10)))
    for number, (account, at_s, device_s) in enumerate(charges):
        use(found, f"job{number}", account, at_s, Amounts(device_s))
    return found


def use(shares: ShareTree, job: str, account: str, at_s: float, amounts: Amounts) -> None:
    shares.admit(job, account, at_s, amounts)
    shares.settle(job, amounts)


def order(shares: ShareTree) -> list[list[str]]:
    return [sorted(leaf.account for leaf in group) for group in shares.order()]


def test_account_with_less_usage_for_its_weight_is_due_first() -> None:
    shares = tree(("ann", 0, 100), ("bob", 0, 150))
    assert order(shares) == [["ann"], ["bob"]]
    shares.set_weight("bob", 2)
    assert order(shares) == [["bob"], ["ann"]]


def test_siblings_are_compared_with_siblings_only() -> None:
    """All users of one organisation come before all of another, however little one of the latter has used."""
    shares = tree(("small/ann", 0, 10), ("big/bob", 0, 1), ("big/carl", 0, 100))
    assert order(shares) == [["small/ann"], ["big/bob"], ["big/carl"]]


def test_users_that_tie_share_a_rank_and_the_next_rank_counts_them() -> None:
    shares = tree(("ann", 0, 5), ("bob", 0, 5), ("carl", 0, 9))
    assert shares.ranks() == {"ann": 1, "bob": 1, "carl": 3}


def test_children_of_accounts_that_tie_are_merged() -> None:
    shares = tree(("a/ann", 0, 30), ("a/abe", 0, 10), ("b/bob", 0, 20), ("b/bea", 0, 20))
    assert order(shares) == [["a/abe"], ["b/bea", "b/bob"], ["a/ann"]]


def test_a_user_that_ties_with_an_account_comes_before_all_below_it() -> None:
    shares = tree(("team/ann", 0, 10), ("team/abe", 0, 20), ("carl", 0, 30))
    assert order(shares) == [["carl"], ["team/ann"], ["team/abe"]]


EQUAL_USES = st.lists(st.tuples(st.sampled_from(ACCOUNTS), st.just(0.0), st.just(5.0)), max_size=8)


@given(EQUAL_USES, st.sets(st.sampled_from([*ACCOUNTS, "a", "a/x", "a/w", "d/w"])))
def test_accounts_that_ask_for_nothing_have_no_part_in_the_order_of_others(
    uses: list[tuple[str, float, float]], idle: set[str]
) -> None:
    asking = {account for account, *_ in uses}
    found = []
    for names in (asking, asking | idle):
        shares = tree(*uses)
        shares.register(dict.fromkeys(names).keys())
        groups = [[name for name in group if name in asking] for group in order(shares)]
        found.append([group for group in groups if group])
    assert found[0] == found[1]


def test_usage_halves_in_a_half_life() -> None:
    shares = tree(("ann", 0, 100), half_life_s=50)
    leaf = shares.leaf("ann")
    assert shares.device_s(leaf, 0) == 100
    assert shares.device_s(leaf, 50) == 50
    assert shares.device_s(leaf, 150) == 12.5
    assert shares.below_s(leaf, 25, 0) == pytest.approx(100)
    assert shares.device_s(leaf, shares.below_s(leaf, 25, 0)) < 25


def test_usage_is_a_fraction_of_the_pool() -> None:
    """All four devices of a pool, busy for ages, are a usage of one."""
    shares = ShareTree(ShareState(ShareSettings(half_life_s=100.0), Capacity(devices=4)))
    for second in range(2000):
        use(shares, f"job{second}", "ann", float(second), Amounts(4.0))
    (view,) = shares.view(2000.0)
    assert view.usage.device_s == pytest.approx(1.0, rel=0.01)
    assert view.used.device_s == 8000.0


def test_the_dominant_resource_counts() -> None:
    shares = tree()
    use(shares, "1", "devices", 0, Amounts(device_s=4 * 100))
    use(shares, "2", "memory", 0, Amounts(device_s=1, memory_byte_s=1e10 * 200))
    assert order(shares) == [["devices"], ["memory"]]
    by_name = {view.account: view for view in shares.view(0)}
    assert by_name["memory"].dominant == pytest.approx(by_name["devices"].dominant * 2)


def test_a_burst_is_charged_before_it_has_run() -> None:
    shares = tree(("bob", 0, 5))
    assert order(shares)[0] == ["bob"] or shares.leaf("ann")
    shares.admit("burst", "ann", 10, Amounts(60))
    assert order(shares) == [["bob"], ["ann"]]
    shares.settle("burst", Amounts(1))
    assert order(shares) == [["ann"], ["bob"]]


def test_weights_change_while_running() -> None:
    shares = tree(("ann", 0, 10), ("bob", 0, 10))
    shares.admit("running", "ann", 0, Amounts(1))
    assert order(shares) == [["bob"], ["ann"]]
    shares.set_weight("ann", 3)
    assert order(shares) == [["ann"], ["bob"]]


def test_protection_comes_from_the_victims_side_below_the_common_ancestor() -> None:
    shares = tree()
    for account in ("org/red/ann", "org/red/abe", "org/blue/bob"):
        shares.leaf(account)
    shares.set_min_runtime("org/red/ann", 1000)
    shares.set_min_runtime("org/red", 60)
    assert shares.min_runtime_s("org/red/ann", "org/red/abe", 1) == 1000
    assert shares.min_runtime_s("org/red/ann", "org/blue/bob", 1) == 60
    assert shares.min_runtime_s("org/blue/bob", "org/red/ann", 1) == 1


def test_an_account_may_have_users_and_jobs_of_its_own() -> None:
    shares = tree(("team", 0, 10), ("team/ann", 0, 5))
    assert order(shares) == [["team/ann"], ["team"]]
    assert shares.ranks() == {"team/ann": 1, "team": 2}
    assert shares.leaf("team").used[0] == 10_000_000


@pytest.mark.parametrize("account", ["/a", "a//b", "a/"])
def test_bad_accounts_are_refused(account: str) -> None:
    with pytest.raises(ValueError, match="empty part"):
        tree().leaf(account)


@given(CHARGES, st.sampled_from(ACCOUNTS), st.floats(0, 50 * WEEK_S))
def test_rollback_restores_every_bit(
    charges: list[tuple[str, float, float, float]], account: str, at_s: float
) -> None:
    shares = tree()
    shares.set_limits("a", Limits(devices_max=3))
    for number, (payer, when_s, device_s, bytes_s) in enumerate(charges):
        shares.admit(f"job{number}", payer, when_s, Amounts(device_s, bytes_s))
    shares.advance(at_s)
    shares.leaf(account)
    before, due = shares.state(), order(shares)
    mark = shares.checkpoint()
    shares.admit("trial", account, at_s, Amounts(1e5, 1e9, 7))
    shares.correct("trial", Amounts(2e5))
    if charges:
        shares.settle("job0", Amounts(1))
    shares.rollback(mark)
    assert shares.state() == before
    assert order(shares) == due


@given(CHARGES)
def test_state_survives_a_database(charges: list[tuple[str, float, float, float]]) -> None:
    shares = tree()
    for number, (payer, when_s, device_s, bytes_s) in enumerate(charges):
        shares.admit(f"job{number}", payer, when_s, Amounts(device_s, bytes_s, 3))
        if number % 2:
            shares.settle(f"job{number}", Amounts(device_s / 2, bytes_s))
    stored = msgspec.json.encode(shares.state())
    again = ShareTree(msgspec.json.decode(stored, type=ShareState))
    assert again.state() == shares.state()
    for account in ACCOUNTS:
        assert again.leaf(account).account == shares.leaf(account).account
    assert order(again) == order(shares)
    again.admit("more", "c", 0.0, Amounts(1))
    shares.admit("more", "c", 0.0, Amounts(1))
    assert again.state() == shares.state()


@given(CHARGES, st.floats(0, 50 * WEEK_S))
def test_the_order_does_not_depend_on_when_it_is_looked_at(
    charges: list[tuple[str, float, float, float]], later_s: float
) -> None:
    shares = tree()
    for number, (payer, when_s, device_s, bytes_s) in enumerate(charges):
        use(shares, f"job{number}", payer, when_s, Amounts(device_s, bytes_s))
    before = order(shares)
    shares.advance(later_s)
    assert order(shares) == before


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_jain_is_between_one_nth_and_one(amounts: list[float]) -> None:
    assert 1 / len(amounts) - 1e-9 <= jain(amounts) <= 1 + 1e-9


def test_jain_of_known_divisions() -> None:
    assert jain([]) == jain([3, 3, 3]) == 1
    assert math.isclose(jain([1, 0, 0, 0]), 0.25)
