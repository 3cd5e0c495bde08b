"""When nodes are asked for and given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from djinn_lab import engine, jobs
from djinn_lab.jobs.autoscaling import (
    NO_CHANGE,
    NodeState,
    ScalingLimits,
    SpareNode,
    WaitingCell,
    decide_scaling,
    waiting_cells,
)
from djinn_lab.simulator.pool import SimulatedPool

LIMITS = ScalingLimits(nodes_max=4, idle_s=60.0, wait_s=20.0, cool_down_s=30.0, give_up_s=600.0)
ALONE = NodeState(nodes=1, requested=1, devices=1)
NOW_S = 1000.0
GANG = WaitingCell("gang", nodes=1, devices=2, short=True)
times = st.none() | st.floats(0.0, NOW_S)
cells = st.lists(
    st.builds(
        WaitingCell,
        job=st.text("abc", min_size=1, max_size=3),
        nodes=st.integers(1, 8),
        waited_s=st.floats(0, 100),
        expected_s=st.none() | st.floats(0, 100),
        devices=st.integers(1, 8),
        short=st.booleans(),
    ),
    max_size=5,
)
spares = st.lists(
    st.builds(
        SpareNode,
        host=st.sampled_from("abcd"),
        devices=st.integers(1, 2),
        idle_since_s=times,
    ),
    max_size=3,
    unique_by=lambda node: node.host,
)
states = st.builds(
    NodeState,
    nodes=st.integers(1, 4),
    requested=st.integers(1, 4),
    devices=st.integers(0, 8),
    short_since_s=times,
    changed_s=times,
    gave_up_s=times,
    spare=spares.map(tuple),
    gang_devices=st.integers(0, 8),
    releasing=st.booleans(),
)


@given(states, cells)
def test_scaling_any_state_keeps_the_limits(state: NodeState, waiting: list[WaitingCell]) -> None:
    found = decide_scaling(state, waiting, LIMITS, NOW_S)
    assert not (found.release and found.nodes is not None)
    assert found == NO_CHANGE or found.why
    if found.nodes is not None:
        assert state.nodes <= found.nodes <= LIMITS.nodes_max
    asks = found.nodes is not None and not found.gave_up
    if asks:
        assert found.nodes is not None
        assert found.nodes > state.requested
        assert any(cell.due(LIMITS.wait_s) for cell in waiting)
    if asks or found.release:
        assert state.changed_s is None or NOW_S - state.changed_s >= LIMITS.cool_down_s
        assert not state.releasing
    if found.release:
        node = next(one for one in state.spare if one.host == found.release)
        assert node.idle_since_s is not None
        assert NOW_S - node.idle_since_s >= LIMITS.idle_s
        assert state.devices - node.devices >= state.gang_devices


def test_gang_larger_than_the_pool_asks_at_once() -> None:
    found = decide_scaling(ALONE, [GANG], LIMITS, NOW_S)
    assert found.nodes == 2
    assert found.why == "job gang needs 2 devices at once, more than there are"


@pytest.mark.parametrize(
    ("waited_s", "expected_s", "nodes"),
    [(5.0, None, None), (25.0, None, 2), (5.0, 30.0, 2), (5.0, 10.0, None)],
)
def test_cell_asks_after_the_threshold(waited_s: float, expected_s: float | None, nodes: int | None) -> None:
    cell = WaitingCell("cell", 1, waited_s, expected_s)
    assert decide_scaling(ALONE, [cell], LIMITS, NOW_S).nodes == nodes


def test_request_within_the_cool_down_waits() -> None:
    state = replace(ALONE, changed_s=NOW_S - 29.0)
    assert decide_scaling(state, [GANG], LIMITS, NOW_S) == NO_CHANGE


def test_request_under_way_is_not_repeated() -> None:
    state = replace(ALONE, requested=2, short_since_s=NOW_S - 100.0)
    assert decide_scaling(state, [GANG], LIMITS, NOW_S) == NO_CHANGE


def test_node_that_does_not_come_is_given_up_for_as_long_again() -> None:
    state = replace(ALONE, requested=2, short_since_s=NOW_S - 600.0)
    found = decide_scaling(state, [GANG], LIMITS, NOW_S)
    assert (found.gave_up, found.nodes, found.why) == (True, 1, "1 node did not come within 10 min 0 s")
    for later_s, nodes in ((599.0, None), (600.0, 2)):
        after = replace(ALONE, gave_up_s=NOW_S)
        assert decide_scaling(after, [GANG], LIMITS, NOW_S + later_s).nodes == nodes


def test_release_takes_the_longest_idle_node() -> None:
    spare = (SpareNode("a", 1, NOW_S - 70.0), SpareNode("b", 1, NOW_S - 80.0), SpareNode("c", 1, None))
    state = NodeState(nodes=4, requested=4, devices=4, spare=spare)
    assert decide_scaling(state, [], LIMITS, NOW_S).release == "b"
    assert decide_scaling(replace(state, gang_devices=4), [], LIMITS, NOW_S) == NO_CHANGE
    assert decide_scaling(replace(state, releasing=True), [], LIMITS, NOW_S) == NO_CHANGE


# -- what further nodes would start ------------------------------------------------------------------------


def pool_of_one() -> SimulatedPool:
    """Return a pool of one device, beside which two may come."""
    pool = SimulatedPool(1, 1000, devices_per_host=1)
    for device in ("cpu:1", "cpu:2"):
        pool.engine.handle(jobs.DeviceExpected(pool.now_s, device))
    return pool


def found_in(pool: SimulatedPool) -> dict[str, WaitingCell]:
    snapshot = pool.engine.queue.decision(pool.now_s)
    return {cell.job: cell for cell in waiting_cells(snapshot, [("cpu:1",), ("cpu:2",)], {})}


def test_cells_that_wait_are_started_by_one_further_node_each() -> None:
    pool = pool_of_one()
    for name in ("ann", "bob", "eve"):
        pool.open(name)
        pool.submit(f"of-{name}", name, seconds=100.0, mib=1)
    pool.run(50.0)
    found = found_in(pool)
    assert sorted(cell.nodes for cell in found.values()) == [1, 2]
    assert all(cell.waited_s == pytest.approx(50.0, abs=1.0) for cell in found.values())


def test_cell_at_its_accounts_limit_needs_no_node() -> None:
    pool = pool_of_one()
    limits = jobs.SharesChanged(pool.now_s, "", limits=jobs.fairness.Limits(devices_max=1.0))
    pool.engine.handle(limits)
    for name in ("ann", "bob"):
        pool.open(name)
        pool.submit(f"of-{name}", name, seconds=100.0, mib=1)
    pool.run(50.0)
    assert not found_in(pool)


def test_expected_device_is_no_device_until_it_is_added() -> None:
    pool = pool_of_one()
    queue = pool.engine.queue
    assert (len(queue.devices()), queue.devices_at_most) == (3, 3)
    assert not queue.short_of_devices()
    with pytest.raises(jobs.IllegalEvent, match="is up"):
        pool.engine.handle(jobs.DeviceExpected(pool.now_s, "cpu:0"))
    pool.engine.handle(engine.DeviceAdded(pool.now_s, "cpu:1", 1000))
    pool.engine.validate()
    assert [view.alive for view in queue.devices()] == [True, True, False]
