"""Free capacity and placement equal plain counting over every node."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from djinn_lab.jobs.placement import DEFAULT, SCORINGS, FreeCapacity, Placed
from djinn_lab.jobs.placement.free import Free, members_fitting, taken
from djinn_lab.jobs.placement.free import given as given_back
from djinn_lab.jobs.request import ComputeNode, Demand, Where

EIGHT = [ComputeNode(f"node{number}", devices=8) for number in range(4)]


def capacity_with_free(**free: int) -> FreeCapacity:
    """Return capacity of nodes with eight devices each, with so many free by node."""
    capacity = FreeCapacity(ComputeNode(name, devices=8) for name in free)
    for name, devices in free.items():
        if devices < 8:
            capacity.take(Demand(members=8 - devices), ((name, 8 - devices),))
    return capacity


def where(placed: Placed | None) -> Where:
    assert placed is not None
    return placed.where


def test_up_to_a_node_goes_to_the_node_with_the_fewest_free_devices_that_fits() -> None:
    capacity = capacity_with_free(a=8, b=3, c=5, d=2)
    assert where(capacity.place(Demand(members=3, members_min=3, together="packed"))) == (("b", 3),)
    assert where(capacity.place(Demand(members=4, members_min=4, together="packed"))) == (("c", 4),)
    assert where(capacity.place(Demand(members=8, members_min=8, together="packed"))) == (("a", 8),)


def test_more_than_a_node_takes_whole_empty_nodes_and_the_rest_of_the_freest_other() -> None:
    demand = Demand(members=20, members_min=20, together="packed")
    assert where(capacity_with_free(a=8, b=4, c=8, d=6).place(demand)) == (("a", 8), ("c", 8), ("d", 4))
    assert where(capacity_with_free(a=8, b=8, c=8, d=6).place(demand)) == (("a", 8), ("b", 8), ("c", 4))
    assert capacity_with_free(a=8, b=7, c=7, d=7).place(demand) is None
    assert capacity_with_free(a=8, b=8, c=3, d=2).place(demand) is None


def test_a_gang_anywhere_fills_the_tightest_nodes_first() -> None:
    capacity = capacity_with_free(a=8, b=1, c=2)
    assert where(capacity.place(Demand(members=5, members_min=5))) == (("b", 1), ("c", 2), ("a", 2))


def test_an_elastic_gang_starts_with_as_many_as_fit() -> None:
    capacity = capacity_with_free(a=2, b=3)
    one_node = Demand(members=8, members_min=2, together="one_node")
    assert where(capacity.place(one_node)) == (("b", 3),)
    assert where(capacity.place(replace(one_node, together="anywhere"))) == (("a", 2), ("b", 3))
    assert capacity.place(replace(one_node, members_min=4)) is None


def test_nodes_are_chosen_by_name_label_taint_cordon_and_readiness() -> None:
    labelled = ComputeNode("labelled", labels=frozenset({"gpu=h200"}))
    tainted = ComputeNode("tainted", taints=frozenset({"research"}))
    capacity = FreeCapacity(
        [
            ComputeNode("plain"),
            labelled,
            tainted,
            ComputeNode("closed", cordoned=True),
            ComputeNode("gone", ready=False),
        ]
    )
    assert where(capacity.place(Demand())) in ((("plain", 1),), (("labelled", 1),))
    assert where(capacity.place(Demand(selector=frozenset({"gpu=h200"})))) == (("labelled", 1),)
    assert where(capacity.place(Demand(nodes=frozenset({"tainted"}), tolerates=frozenset({"research"}))))
    for name in ("tainted", "closed", "gone", "elsewhere"):
        assert capacity.place(Demand(nodes=frozenset({name}))) is None
    assert capacity.place(Demand(), only=frozenset({"closed"})) is None
    assert where(capacity.place(Demand(), only=frozenset({"plain", "closed"}))) == (("plain", 1),)
    assert where(capacity.place(Demand(prefers=frozenset({"gpu=h200"})))) == (("labelled", 1),)


def test_placement_keeps_the_home_node_while_it_has_capacity() -> None:
    capacity = FreeCapacity(EIGHT)
    assert where(capacity.place(Demand(), home="node2")) == (("node2", 1),)
    capacity.take(Demand(members=8), (("node2", 8),))
    assert where(capacity.place(Demand(), home="node2")) == (("node0", 1),)


def test_scores_say_what_decided() -> None:
    capacity = FreeCapacity(EIGHT)
    placed = capacity.place(Demand(), SCORINGS["mixed_30_20_20_20_10"], home="node1")
    assert placed is not None
    assert placed.scores.keys() == {"fit", "affinity", "load", "locality", "cost"}
    assert placed.scores["locality"] == pytest.approx(0.2)
    assert placed.scores["load"] == pytest.approx(0.2)
    assert placed.scores["fit"] == pytest.approx(0.3 / 8)


def test_a_balancing_load_spreads_and_best_fit_packs() -> None:
    capacity = capacity_with_free(a=8, b=3)
    assert where(capacity.place(Demand(), SCORINGS["spread"])) == (("a", 1),)
    assert where(capacity.place(Demand(), SCORINGS["best_fit"])) == (("b", 1),)


def test_shares_of_a_device_are_kept_on_as_few_devices_as_possible() -> None:
    capacity = FreeCapacity([ComputeNode("a", devices=2)])
    half, third = Demand(device_milli=500), Demand(device_milli=300)
    for demand in (half, third, half):
        capacity.take(demand, (("a", 1),))
    assert capacity.free("a") == Free(0, shares=((300, 500), (500,)))
    assert capacity.place(Demand()) is None
    assert capacity.place(half) is not None
    capacity.give(half, (("a", 1),))
    capacity.give(third, (("a", 1),))
    capacity.give(half, (("a", 1),))
    assert capacity.free("a") == Free(2)


def test_what_excludes_each_node_is_counted_once() -> None:
    capacity = FreeCapacity(
        [
            ComputeNode("gone", devices=2, ready=False, cordoned=True),
            ComputeNode("closed", devices=2, cordoned=True),
            ComputeNode("unnamed", devices=2),
            ComputeNode("unlabelled", devices=2),
            ComputeNode("tainted", devices=2, labels=frozenset({"a"}), taints=frozenset({"t"})),
            ComputeNode("small", devices=1, labels=frozenset({"a"})),
            ComputeNode("busy", devices=2, labels=frozenset({"a"})),
            ComputeNode("open", devices=3, labels=frozenset({"a"})),
        ]
    )
    capacity.take(Demand(members=2), (("busy", 2),))
    names = frozenset({"gone", "closed", "unlabelled", "tainted", "small", "busy", "open"})
    demand = Demand(
        members=4, members_min=2, together="one_node", selector=frozenset({"a"}), nodes=names | {"nowhere"}
    )
    misfit = capacity.misfit(demand)
    assert (misfit.not_ready, misfit.cordoned, misfit.not_named, misfit.too_small) == (1, 1, 1, 1)
    assert (misfit.filtered, misfit.busy, misfit.open) == ({"labels": 1, "taints": 1}, 1, 1)
    assert (misfit.nodes, misfit.members_open) == (8, 3)


@pytest.mark.parametrize(
    ("demand", "constraint", "needed", "available"),
    [
        (Demand(nodes=frozenset({"nowhere"})), "nodes", 1, 0),
        (Demand(selector=frozenset({"gpu=none"})), "labels", 1, 0),
        (Demand(nodes=frozenset({"tainted"})), "taints", 1, 0),
        (Demand(device_milli=1500), "device_share", 1500, 1000),
        (Demand(cpu_milli=5000), "cpu", 5000, 4000),
        (Demand(memory_mib=1), "memory", 1, 0),
        (Demand(members=9, members_min=9, together="one_node"), "one_node", 9, 8),
        (Demand(members=17, members_min=17), "members", 17, 16),
        (Demand(members=17, members_min=17, together="packed"), "members", 17, 16),
        (Demand(members=17, members_min=16, together="packed"), None, 0, 0),
        (Demand(members=2, members_min=2, cpu_milli=4000, nodes=frozenset({"a"})), "members", 2, 1),
    ],
)
def test_impossible_demand_names_its_constraint(
    demand: Demand, constraint: str | None, needed: int, available: int
) -> None:
    capacity = FreeCapacity(
        [
            ComputeNode("a", devices=8, cpu_milli=4000),
            ComputeNode("b", devices=8, cordoned=True, ready=False),
            ComputeNode("tainted", devices=8, taints=frozenset({"t"})),
        ]
    )
    capacity.take(Demand(members=8), (("a", 8),))
    verdict = capacity.ever_fits(demand)
    assert (verdict.constraint, verdict.needed, verdict.available) == (constraint, needed, available)
    assert bool(verdict) == (constraint is None)


def test_a_pool_without_devices_has_none_to_give() -> None:
    verdict = FreeCapacity([ComputeNode("host", devices=0, cpu_milli=1000)]).ever_fits(Demand())
    assert (verdict.constraint, verdict.needed, verdict.available) == ("devices", 1, 0)


def test_a_node_that_changes_keeps_what_it_holds() -> None:
    capacity = FreeCapacity([ComputeNode("a", devices=4)])
    capacity.take(Demand(members=3), (("a", 3),))
    capacity.set_node(ComputeNode("a", devices=8, labels=frozenset({"new"})))
    assert capacity.free("a") == Free(5)
    capacity.set_node(ComputeNode("a", devices=2))
    assert capacity.place(Demand()) is None
    capacity.give(Demand(members=3), (("a", 3),))
    assert capacity.free("a") == Free(2)
    capacity.remove_node("a")
    assert (capacity.place(Demand()), capacity.devices) == (None, 0)
    with pytest.raises(KeyError, match="no node 'a'"):
        capacity.give(Demand(), (("a", 1),))


DEMANDS = st.builds(
    Demand,
    members=st.integers(1, 12),
    device_milli=st.sampled_from([0, 1000, 1000, 500, 300]),
    cpu_milli=st.sampled_from([0, 0, 1000]),
    memory_mib=st.sampled_from([0, 10]),
    together=st.sampled_from(["anywhere", "packed", "one_node"]),
    selector=st.sampled_from([frozenset(), frozenset({"x"})]),
    tolerates=st.sampled_from([frozenset(), frozenset({"t"})]),
    nodes=st.none() | st.frozensets(st.sampled_from("abcdef")),
).flatmap(lambda one: st.builds(replace, st.just(one), members_min=st.integers(1, one.members)))
NODES = st.builds(
    ComputeNode,
    node=st.just(""),
    devices=st.sampled_from([0, 1, 4, 8]),
    cpu_milli=st.sampled_from([0, 4000]),
    memory_mib=st.sampled_from([40, 100]),
    labels=st.sampled_from([frozenset(), frozenset({"x"})]),
    taints=st.sampled_from([frozenset(), frozenset({"t"})]),
    cordoned=st.sampled_from([False, False, False, True]),
)


class FreeCapacityMachine(RuleBasedStateMachine):
    """Free capacity beside a table of what each node has free, kept by the same pure steps."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Demand, Where]] = []
        self.marks: list[tuple[int, list[tuple[Demand, Where]]]] = []

    @initialize(nodes=st.lists(NODES, min_size=1, max_size=6))
    def start(self, nodes: list[ComputeNode]) -> None:
        self.nodes = {name: replace(node, node=name) for name, node in zip("abcdef", nodes, strict=False)}
        self.capacity = FreeCapacity(self.nodes.values())

    def capacities(self, demand: Demand) -> dict[str, int]:
        return {
            name: members_fitting(self.capacity.free(name), demand)
            for name, node in self.nodes.items()
            if demand.selector <= node.labels
            and node.taints <= demand.tolerates
            and not node.cordoned
            and (demand.nodes is None or name in demand.nodes)
        }

    @rule(
        demand=DEMANDS, scoring=st.sampled_from(sorted(SCORINGS)), home=st.sampled_from("abcdef") | st.none()
    )
    def start_one(self, demand: Demand, scoring: str, home: str | None) -> None:
        fitting = self.capacities(demand)
        placed = self.capacity.place(demand, SCORINGS[scoring], home)
        most = max(fitting.values(), default=0)
        if demand.together == "anywhere":
            assert (0 if placed is None else placed.members) in (
                0,
                min(demand.members, sum(fitting.values())),
            )
            assert (placed is not None) == (sum(fitting.values()) >= demand.members_min)
        elif demand.together == "one_node":
            assert (placed is not None) == (most >= demand.members_min)
        misfit = self.capacity.misfit(demand)
        assert misfit.nodes == len(self.nodes)
        assert (misfit.members_open == 0) == (sum(fitting.values()) == 0) or demand.together == "one_node"
        if placed is None:
            return
        assert self.capacity.ever_fits(demand)
        assert all(members <= fitting[name] for name, members in placed.where)
        assert len({name for name, _ in placed.where}) == len(placed.where)
        assert demand.members_min <= placed.members <= demand.members
        self.capacity.take(demand, placed.where)
        self.held.append((demand, placed.where))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.held) - 1))
        self.held = list(self.held)
        self.capacity.give(*self.held.pop(number))

    @rule()
    def mark(self) -> None:
        self.marks.append((self.capacity.checkpoint(), list(self.held)))

    @precondition(lambda self: self.marks)
    @rule(keep=st.booleans())
    def close(self, keep: bool) -> None:
        mark, held = self.marks.pop()
        if keep:
            self.capacity.commit(mark)
        else:
            self.capacity.rollback(mark)
            self.held = held

    @precondition(lambda self: not self.marks)
    @rule(node=NODES, name=st.sampled_from("abcdef"))
    def change(self, node: ComputeNode, name: str) -> None:
        if name in self.nodes and node.devices >= self.nodes[name].devices:
            self.nodes[name] = replace(self.nodes[name], labels=node.labels, cordoned=node.cordoned)
            self.capacity.set_node(self.nodes[name])

    @invariant()
    def totals(self) -> None:
        devices = sum(node.devices for node in self.nodes.values() if not node.cordoned)
        assert self.capacity.devices == devices
        whole = sum(
            max(0, self.capacity.free(name).devices) for name, node in self.nodes.items() if not node.cordoned
        )
        assert self.capacity.devices_free == whole
        for name, node in self.nodes.items():
            free = self.capacity.free(name)
            on_it = [(demand, members) for demand, where in self.held for at, members in where if at == name]
            assert free.cpu_milli == node.cpu_milli - sum(d.cpu_milli * members for d, members in on_it)
            shared = sum(sum(held) for held in free.shares)
            used = sum(d.device_milli * members for d, members in on_it)
            assert (node.devices - free.devices - len(free.shares)) * 1000 + shared == used

    def teardown(self) -> None:
        if not hasattr(self, "capacity"):
            return
        for mark, held in reversed(self.marks):
            self.capacity.rollback(mark)
            self.held = held
        for demand, at in self.held:
            self.capacity.give(demand, at)
        for name, node in self.nodes.items():
            assert self.capacity.free(name) == Free(node.devices, node.cpu_milli, node.memory_mib)


TestFreeCapacityMachine = FreeCapacityMachine.TestCase
TestFreeCapacityMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(DEMANDS, st.integers(1, 12))
def test_giving_back_undoes_taking(demand: Demand, members: int) -> None:
    free = Free(8, 20_000, 200, ((250, 350), (400,)))
    assume(members <= members_fitting(free, demand))
    assert given_back(taken(free, demand, members), demand, members)[:3] == free[:3]
    assert sum(map(sum, given_back(taken(free, demand, members), demand, members).shares)) == 1000


def test_equal_capacity_with_another_history_places_alike() -> None:
    straight, turned = FreeCapacity(EIGHT), FreeCapacity(EIGHT)
    mark = turned.checkpoint()
    for name in ("node3", "node0", "node1"):
        turned.take(Demand(members=5), ((name, 5),))
    turned.rollback(mark)
    for members in (3, 8, 1, 6, 2):
        demand = Demand(members=members, members_min=members, together="packed")
        first, second = straight.place(demand, DEFAULT), turned.place(demand, DEFAULT)
        assert where(first) == where(second)
        straight.take(demand, where(first))
        turned.take(demand, where(second))


def test_a_gang_has_a_member_where_what_cannot_be_moved_lies() -> None:
    capacity = FreeCapacity(ComputeNode(name) for name in "abcd")
    anchored = Demand(members=3, members_min=2, anchor="c")
    assert where(capacity.place(anchored)) == (("c", 1), ("a", 1), ("b", 1))
    capacity.take(Demand(), (("a", 1),))
    capacity.take(Demand(), (("b", 1),))
    assert where(capacity.place(anchored)) == (("c", 1), ("d", 1))
    assert capacity.place(anchored, only=frozenset("abd")) is None
    capacity.take(Demand(), (("d", 1),))
    assert capacity.place(anchored) is None
    assert where(capacity.place(replace(anchored, members_min=1))) == (("c", 1),)
    capacity.give(Demand(), (("a", 1),))
    capacity.take(Demand(), (("c", 1),))
    assert capacity.place(replace(anchored, members_min=1)) is None
