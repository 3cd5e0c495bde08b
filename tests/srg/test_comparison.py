"""Two runs of a cell, compared op by op."""

from __future__ import annotations

from collections import Counter

from graph_nodes import make_node
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.srg.comparison import Change, Run, changes_by, compare_runs
from djinn_lab.srg.graph import Node

Named = list[tuple[str, str]]
named_ops = st.lists(
    st.tuples(
        st.sampled_from(["Net.a", "Net.b", ""]), st.sampled_from(["aten.mm.default", "aten.relu.default"])
    ),
    max_size=14,
)
seconds = st.floats(0, 10)


def nodes(ops: Named, call: int = 1) -> list[Node]:
    return [make_node(number, module, op, call=call) for number, (module, op) in enumerate(ops)]


@given(named_ops, named_ops)
def test_comparison_names_every_op_of_both_runs_exactly_once(before: Named, after: Named) -> None:
    found = compare_runs(nodes(before), nodes(after, call=2))
    assert sorted([one for one, _ in found.pairs] + list(found.removed)) == list(range(len(before)))
    assert sorted([other for _, other in found.pairs] + list(found.added)) == list(range(len(after)))
    assert all(before[one] == after[other] for one, other in found.pairs)
    assert len(found.anchors) == len(found.removed)
    assert all((anchor is None) == (not after) for anchor in found.anchors)


@given(named_ops, named_ops)
def test_comparison_matches_as_many_ops_as_possible(before: Named, after: Named) -> None:
    found = compare_runs(nodes(before), nodes(after))
    assert len(found.pairs) == sum((Counter(before) & Counter(after)).values())


@given(named_ops, named_ops)
def test_comparison_the_other_way_round_exchanges_added_and_removed(before: Named, after: Named) -> None:
    there, back = compare_runs(nodes(before), nodes(after)), compare_runs(nodes(after), nodes(before))
    assert (there.added, there.removed) == (back.removed, back.added)
    assert sorted(there.pairs) == sorted((one, other) for other, one in back.pairs)


@given(named_ops)
def test_comparison_with_an_equal_run_finds_no_change(ops: Named) -> None:
    found = compare_runs(nodes(ops), nodes(ops, call=7))
    assert found.pairs == tuple((number, number) for number in range(len(ops)))
    assert found.added == found.removed == ()


@given(st.data(), named_ops, named_ops)
def test_changes_of_groups_add_up_to_both_runs(data: st.DataObject, before: Named, after: Named) -> None:
    one, other = (
        Run(nodes(ops), data.draw(st.lists(seconds, min_size=len(ops), max_size=len(ops))))
        for ops in (before, after)
    )
    comparison = compare_runs(one.nodes, other.nodes)
    changes = changes_by(comparison, one, other, lambda node: node.module).values()
    assert sum(change.matched + change.removed for change in changes) == len(before)
    assert sum(change.matched + change.added for change in changes) == len(after)
    assert abs(sum(change.before_s for change in changes) - sum(one.seconds)) < 1e-9
    assert abs(sum(change.difference_s for change in changes) - sum(other.seconds) + sum(one.seconds)) < 1e-9


def test_change_has_a_ratio_where_both_runs_have_ops() -> None:
    assert Change(matched=2, before_s=1.0, after_s=3.0).ratio == 3.0
    assert Change(added=1, removed=1, before_s=2.0, after_s=1.0).ratio == 0.5
    assert Change(added=2, after_s=1.0).ratio is None
    assert Change(removed=2, before_s=1.0).ratio is None
    assert Change(matched=1).ratio is None


def test_removed_op_is_placed_behind_the_last_op_of_its_module_that_is_left() -> None:
    before = nodes([("Net.a", "mm"), ("Net.a", "relu"), ("Net.b", "mm"), ("Net.a", "tanh")])
    after = nodes([("Net.a", "mm"), ("Net.b", "mm")])
    found = compare_runs(before, after)
    assert found.removed == (1, 3)
    assert found.anchors == (0, 0)
