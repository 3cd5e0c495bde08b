"""The critical path of a graph, and why predicted and measured times differ."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.scheduler import DeviceProfile, ExecutionSchedule
from djinn_lab.scheduler.critical_path import CriticalPath, find_critical_path
from djinn_lab.scheduler.difference import difference_sentence, difference_shares, group_name
from djinn_lab.scheduler.memory_plan import MemoryPlan
from djinn_lab.scheduler.schedule import ScheduledNode

Edges = list[tuple[int, int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[float], Edges]:
    count = draw(st.integers(1, 8))
    weights = draw(st.lists(st.integers(0, 6).map(float), min_size=count, max_size=count))
    pairs = [(one, other) for other in range(count) for one in range(other)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=14)) if pairs else []
    return weights, edges


def all_paths(count: int, edges: Edges) -> Iterator[tuple[int, ...]]:
    """Every path of a small graph, one node long or more."""

    def extended(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield path
        for source, target in set(edges):
            if source == path[-1]:
                yield from extended((*path, target))

    for node in range(count):
        yield from extended((node,))


@given(graphs())
def test_critical_path_is_the_longest_of_all_paths(graph: tuple[list[float], Edges]) -> None:
    weights, edges = graph
    found = find_critical_path(weights, edges)
    assert found.nodes in set(all_paths(len(weights), edges))
    assert found.seconds == sum(weights[node] for node in found.nodes)
    assert found.seconds == max(
        sum(weights[node] for node in path) for path in all_paths(len(weights), edges)
    )


@given(graphs())
def test_critical_path_does_not_depend_on_the_order_of_edges(graph: tuple[list[float], Edges]) -> None:
    weights, edges = graph
    assert find_critical_path(weights, edges) == find_critical_path(weights, edges[::-1] + edges)


def test_critical_path_of_no_ops_is_empty_and_backward_edges_are_refused() -> None:
    assert find_critical_path([], []) == CriticalPath((), 0.0)
    for edge in ((1, 0), (0, 0), (0, 2), (-1, 1)):
        with pytest.raises(ValueError, match="is no edge"):
            find_critical_path([1.0, 1.0], [edge])


def schedule(predicted: list[float], measured: list[float] | None, modules: list[str]) -> ExecutionSchedule:
    """Ops one after the other; measured ones a tenth of a second apart. Predicted transfers take 0.5 s."""
    nodes: list[ScheduledNode] = []
    at = 0.5
    for number, (length, module) in enumerate(zip(predicted, modules, strict=True)):
        nodes.append(
            ScheduledNode(number, "aten.mm.default", module, number, "forward", at, at + length, "compute", 1)
        )
        at += length
    made = ExecutionSchedule(
        device=DeviceProfile.default("cpu"),
        profile="basic_inference",
        structural_hash="x",
        nodes=tuple(nodes),
        transfers=(),
        groups=(),
        memory=MemoryPlan(1, 1, 0, 0, ()),
        limit_bytes=2**20,
        predicted_s=at,
        decisions=(),
    )
    if measured is None:
        return made
    starts: list[float] = []
    now = 0.0
    for length in measured:
        starts.append(now)
        now += length + 0.1
    return made.with_measured(
        starts, [start + length for start, length in zip(starts, measured, strict=True)]
    )


lengths = st.lists(
    st.tuples(st.floats(0, 5), st.floats(0, 5), st.sampled_from(["N.h.0", "N.h.1", "N.head", ""]))
)


@given(lengths)
def test_difference_shares_add_up_to_the_difference(ops: list[tuple[float, float, str]]) -> None:
    made = schedule([one for one, _, _ in ops], [two for _, two, _ in ops], [name for _, _, name in ops])
    shares = difference_shares(made)
    if made.measured_s is None:
        assert shares == ()
        return
    total = sum(share.seconds for share in shares)
    assert isclose(total, made.measured_s - made.predicted_s, abs_tol=1e-6)
    assert sum(share.ops for share in shares) == len(ops)
    assert [abs(share.seconds) for share in shares] == sorted((abs(s.seconds) for s in shares), reverse=True)
    assert difference_sentence(made).endswith(".")


def test_difference_sentence_names_the_groups_that_account_for_most() -> None:
    modules = ["Net.h.0.attn", "Net.h.1.attn", "Net.head"]
    made = schedule([1.0, 1.0, 1.0], [4.0, 4.0, 1.1], modules)
    sentence = difference_sentence(made)
    assert sentence.startswith("The run took 5.8 s longer than predicted, mostly in Net.h.*.attn (+6.0 s)")
    assert "Net.head" not in sentence
    shorter = difference_sentence(schedule([4.0, 4.0, 1.0], [1.0, 1.0, 1.0], modules))
    assert "shorter than predicted, mostly in Net.h.*.attn (−6.0 s)" in shorter
    assert difference_sentence(schedule([1.0], None, ["Net"])) == ""


def test_groups_of_equal_layers_have_one_name() -> None:
    [node] = schedule([1.0], None, ["Net.h.12.attn.3"]).nodes
    assert group_name(node) == "Net.h.*.attn.*"
