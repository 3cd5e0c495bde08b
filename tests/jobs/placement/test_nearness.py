"""Members of a gang are placed near each other, where that costs nothing else."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from djinn_lab.jobs.backfill.profile import AvailabilityProfile
from djinn_lab.jobs.placement import SCORINGS, FreeCapacity
from djinn_lab.jobs.request import ComputeNode, Demand

MEMBERS_MAX = 6


def device(number: int, numa: int | None, **more: float) -> ComputeNode:
    labels = {"kind=cuda"} if numa is None else {"kind=cuda", f"numa={numa}"}
    return ComputeNode(f"cuda:{number}", labels=frozenset(labels), **more)  # type: ignore[arg-type]


def pool(*numa: int | None) -> list[ComputeNode]:
    return [device(number, node) for number, node in enumerate(numa)]


def capacity_of(nodes: list[ComputeNode], busy: frozenset[str] = frozenset()) -> FreeCapacity:
    capacity = FreeCapacity(nodes)
    for name in sorted(busy):
        capacity.take(Demand(), ((name, 1),))
    return capacity


def chosen(capacity: FreeCapacity, demand: Demand, home: str | None = None) -> list[str]:
    placed = capacity.place(demand, home=home)
    return [] if placed is None else [name for name, _ in placed.where]


def numa_nodes(capacity: FreeCapacity, names: list[str]) -> set[str]:
    return {label for name in names for label in capacity.node(name).labels if label.startswith("numa=")}


def test_two_members_go_to_two_devices_of_one_node() -> None:
    capacity = capacity_of(pool(0, 1, 1, 0))
    assert chosen(capacity, Demand(members=2, members_min=2)) == ["cuda:0", "cuda:3"]
    assert chosen(capacity_of(pool(None, None, None, None)), Demand(members=2)) == ["cuda:0", "cuda:1"]
    assert chosen(capacity_of(pool(1, 1, 1, 1)), Demand(members=2)) == ["cuda:0", "cuda:1"]


def test_gang_members_are_placed_near_the_home_of_the_session() -> None:
    capacity = capacity_of(pool(0, 0, 0, 1, 1))
    assert chosen(capacity, Demand(members=2), home="cuda:4") == ["cuda:4", "cuda:3"]
    anchored = Demand(members=2, members_min=2, anchor="cuda:4")
    assert chosen(capacity, anchored, home="cuda:4") == ["cuda:4", "cuda:3"]
    named = replace(anchored, anchor="cuda:1", nodes=frozenset({"cuda:1", "cuda:2", "cuda:3", "cuda:4"}))
    assert chosen(capacity, named, home="cuda:1") == ["cuda:1", "cuda:2"]


def test_a_small_gang_leaves_the_larger_node_to_others() -> None:
    capacity = capacity_of(pool(0, 0, 0, 1, 1))
    assert chosen(capacity, Demand(members=2)) == ["cuda:3", "cuda:4"]
    assert chosen(capacity, Demand(members=3)) == ["cuda:0", "cuda:1", "cuda:2"]


def test_price_counts_before_nearness_and_size_before_both() -> None:
    nodes = [device(0, 0), device(1, 0, price=2.0), device(2, 1), device(3, 1, price=2.0)]
    assert chosen(capacity_of(nodes), Demand(members=2)) == ["cuda:0", "cuda:2"]
    assert len(chosen(capacity_of(nodes), Demand(members=4, members_min=1))) == 4


def test_device_of_unknown_node_is_near_no_other() -> None:
    capacity = capacity_of(pool(None, None, 0, 1, 1))
    assert chosen(capacity, Demand(members=2)) == ["cuda:3", "cuda:4"]
    assert chosen(capacity, Demand(members=3))[:2] == ["cuda:3", "cuda:4"]


def test_placement_with_a_reservation_is_near_as_well() -> None:
    """With a reservation, capacity is searched device by device."""
    capacity = capacity_of(pool(0, 1, 1, 0))
    profile = AvailabilityProfile(capacity, (), 0.0)
    last = Demand(nodes=frozenset({"cuda:3"}))
    slot = profile.earliest(last, 1.0, 100.0)
    assert slot is not None
    profile.reserve(last, slot, 100.0)
    where = profile.now(Demand(members=2, members_min=2), 500.0)
    assert where is not None
    assert [name for name, _ in where] == ["cuda:1", "cuda:2"]


POOLS = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=9)


@given(POOLS, st.data())
def test_no_gang_lies_on_more_nodes_than_it_must(numa: list[int], data: st.DataObject) -> None:
    nodes = pool(*numa)
    names = [node.node for node in nodes]
    busy = data.draw(st.frozensets(st.sampled_from(names)))
    free = [name for name in names if name not in busy]
    home = data.draw(st.none() | st.sampled_from(names))
    members = data.draw(st.integers(2, MEMBERS_MAX))
    anchor = home if home in free and data.draw(st.booleans()) else None
    capacity = capacity_of(nodes, busy)
    found = chosen(capacity, Demand(members=members, anchor=anchor), home)
    assert len(found) == len(set(found)) == min(members, len(free))
    at_home = [home] if home in free else []
    assert found[: len(at_home)] == at_home
    size = Counter(numa[names.index(name)] for name in free)
    needed = {numa[names.index(name)] for name in at_home}
    covers = [
        count
        for count in range(len(size) + 1)
        for kept in combinations(size, count)
        if needed <= set(kept) and sum(size[node] for node in kept) >= len(found)
    ]
    assert len(numa_nodes(capacity, found)) == min(covers)


@given(st.lists(st.sampled_from([None, 0]), min_size=1, max_size=8), st.data())
@pytest.mark.parametrize("scoring", sorted(SCORINGS))
def test_with_one_node_or_none_known_nothing_is_different(
    scoring: str, numa: list[int | None], data: st.DataObject
) -> None:
    """Compare with the same devices labelled under another key, which says nothing of their position."""
    plain = [
        replace(node, labels=frozenset(label.replace("numa", "rack") for label in node.labels))
        for node in pool(*numa)
    ]
    names = [node.node for node in plain]
    busy = data.draw(st.frozensets(st.sampled_from(names)))
    home = data.draw(st.none() | st.sampled_from(names))
    demand = Demand(
        members=data.draw(st.integers(1, MEMBERS_MAX)), anchor=data.draw(st.sampled_from([None, home]))
    )
    placed = [
        capacity_of(nodes, busy).place(demand, SCORINGS[scoring], home) for nodes in (pool(*numa), plain)
    ]
    assert placed[0] == placed[1]
