"""Colours, counts of edges, pictures and comparisons of graphs, without a pool and without a browser."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_graph_folding import graph

from djinn_lab.dashboard.graph.changes import ItemChanges
from djinn_lab.dashboard.graph.comparing import other_runs, previous_run
from djinn_lab.dashboard.graph.figures import NodeFigures
from djinn_lab.dashboard.graph.folding import PartRange, Tree
from djinn_lab.dashboard.graph.picture import graph_svg
from djinn_lab.dashboard.graph.scene import arrange, box_columns, count_columns, link_columns
from djinn_lab.dashboard.graph.shading import (
    ChangeShading,
    PhaseShading,
    Shading,
    colour_choice,
    figures_shading,
)
from djinn_lab.dashboard.graph.tables import box_rows
from djinn_lab.dashboard.widgets.theme import DARK, LIGHT
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.srg.graph import SRG


def figures(srg: SRG, factor: float = 1.0, measured: bool = True) -> NodeFigures:
    """Ops of the module ``attn`` take 3 ms each, others 1 ms; memory grows by 1 KiB an op."""
    seconds = np.array([0.003 if "attn" in node.module else 0.001 for node in srg.nodes]) * factor
    live = np.arange(1, len(srg.nodes) + 1, dtype=np.float64) * 1024
    return NodeFigures(seconds, seconds * 2 if measured else None, live)


def test_times_and_memory_are_colours_and_figures_of_boxes() -> None:
    tree = Tree(graph(2))
    made = figures(tree.srg)
    scene = arrange(tree, tree.start())
    fills = set()
    for by, figure in (("predicted", "ms, "), ("measured", "ms, "), ("memory", "KiB")):
        shading = figures_shading(by, made, LIGHT)  # type: ignore[arg-type]
        assert shading is not None
        assert len(shading.legend) == 5
        columns = box_columns(tree, scene, LIGHT, shading, frozenset(), None)
        assert all(figure in text for text in columns["figure"])
        assert set(columns["fill"]) <= {colour for _, colour in shading.legend}
        fills.add(tuple(columns["fill"]))
        rows = box_rows(tree, scene, shading)
        assert len(rows) == len(scene.frames)
        assert figure in str(rows[-1]["figure"])
    assert len(fills) == 2, "measured times are a multiple of the predicted ones here"
    whole = figures_shading("measured", made, LIGHT)
    assert whole is not None
    assert whole.shade(tree.root).figure.endswith("100%")


def test_measured_colours_need_a_run_of_all_ops() -> None:
    assert figures_shading("measured", figures(graph(1), measured=False), LIGHT) is None


@pytest.mark.parametrize(
    ("text", "comparing", "found"),
    [("", False, "phase"), ("", True, "change"), ("memory", True, "memory"), ("change", False, "phase")],
)
def test_address_chooses_the_colours(text: str, comparing: bool, found: str) -> None:
    assert colour_choice(text, comparing) == found
    assert colour_choice("nonsense", comparing) == colour_choice("", comparing)


def compared(before: SRG, after: SRG, factor: float = 1.0) -> tuple[Tree, ItemChanges]:
    changes = ItemChanges((before, figures(before)), (after, figures(after, factor)), "an earlier run")
    return Tree(after), changes


def test_a_slower_run_is_slower_everywhere_and_an_equal_one_nowhere() -> None:
    tree, slower = compared(graph(2), graph(2), factor=2.0)
    assert slower.of(tree.root).ratio == pytest.approx(2.0)
    assert slower.basis == "measured"
    assert "(2 times)" in slower.sentence()
    shading = ChangeShading(slower, LIGHT)
    equal = ChangeShading(compared(graph(2), graph(2))[1], LIGHT)
    for item in tree.items:
        assert shading.shade(item).fill == shading.legend[1][1]
        assert equal.shade(item).fill == equal.legend[3][1]
        assert shading.shade(item).figure == "2×"


def test_added_and_removed_ops_are_counted_where_they_are() -> None:
    tree, grown = compared(graph(2), graph(3))
    per_step = len(graph(3).nodes) - len(graph(2).nodes)
    assert grown.of(tree.root).added == per_step
    assert len({ChangeShading(grown, DARK).shade(tree.items[child]).fill for child in tree.root.children}) > 1
    tree, shrunk = compared(graph(3), graph(2))
    assert shrunk.of(tree.root).removed == per_step
    assert sum(shrunk.of(tree.items[child]).removed for child in tree.root.children) == per_step
    rows, note = shrunk.rows("op")
    assert {"mm", "softmax", "argmax"} <= {row["name"] for row in rows}
    assert note == ""
    assert f"0 ops added, {per_step} removed" in shrunk.sentence()


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_changes_of_boxes_add_up_to_the_whole(before: int, after: int, layers: int) -> None:
    tree, changes = compared(graph(before, layers), graph(after, layers))
    whole = changes.of(tree.root)
    assert (whole.matched, whole.added, whole.removed) == (
        changes.total.matched,
        changes.total.added,
        changes.total.removed,
    )
    assert whole.before_s == pytest.approx(changes.total.before_s)
    assert whole.after_s == pytest.approx(changes.total.after_s)


def test_edges_between_two_boxes_are_one_link_with_their_count() -> None:
    tree = Tree(graph(3))
    scene = arrange(tree, frozenset())
    curves = [link_columns(scene, backward=backward) for backward in (False, True)]
    counts = count_columns(scene, curves)
    several = [link for link in scene.links if link.edges > 1]
    assert several
    assert sorted(counts["count"]) == sorted(str(link.edges) for link in several)
    pairs = [(link.source, link.target) for link in scene.links]
    assert len(pairs) == len(set(pairs))
    assert all(" edges with " in text for text in counts["what"])


def test_picture_has_every_box_and_the_legend_and_escapes_names() -> None:
    tree = Tree(graph(2))
    scene = arrange(tree, tree.start())
    shading: Shading = PhaseShading(tree, DARK)
    drawn = graph_svg(tree, scene, shading, DARK, "Graph of <b>a cell</b>")
    root = ElementTree.fromstring(drawn)
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Graph of <b>a cell</b>" in texts
    assert {name for name, _ in shading.legend} <= set(texts)
    labels = box_columns(tree, scene, DARK, shading, frozenset(), None)["label"]
    assert all(label in texts for label in labels)


def test_parts_of_a_whole_cell_are_groups_in_their_order() -> None:
    srg = graph(2)
    half = len(srg.nodes) // 2
    ranges = [PartRange("part 1: up to .item()", 0, half), PartRange("part 2: up to the end", half, 2 * half)]
    tree = Tree(srg, ranges)
    parts = [tree.items[child] for child in tree.root.children]
    assert [part.name for part in parts] == [one.name for one in ranges]
    assert [(part.first, part.last) for part in parts] == [(0, half), (half, 2 * half)]
    assert parts[0].children
    node = tree.item_of_node(half + 1)
    assert parts[1] in tree.ancestors(node)
    empty = Tree(srg, [PartRange("part 1", 0, 0), PartRange("part 2", 0, 2 * half)])
    assert [tree.items[child].name for child in empty.root.children] != []
    assert [empty.items[child].name for child in empty.root.children] == ["part 2"]


def job(name: str, cell: str, ops: int, at: float, user: str = "ann", session: str = "s") -> JobView:
    return JobView(name, session=session, user=user, cell=cell, ops_total=ops, submitted_at=at)


def test_previous_run_is_the_same_cell_of_the_same_user_before() -> None:
    now = job("now", "train", 50, 5)
    jobs = [
        job("later", "train", 50, 6),
        now,
        job("other user", "train", 50, 4.5, user="bob"),
        job("another cell", "plot", 50, 4),
        job("edited", "train", 44, 3),
        job("fetch", "train", 0, 2.5),
        job("same", "train", 50, 2),
    ]
    assert [one.job for one in other_runs(jobs, now)] == ["edited", "same", "another cell", "later"]
    previous = previous_run(jobs, now)
    assert previous is not None
    assert previous.job == "edited", "what an edit changed is the question"
    assert previous_run(jobs[:4], job("new", "new", 7, 9)) is None


def test_previous_run_of_a_numbered_cell_has_as_many_ops() -> None:
    now = job("now", "In [6]", 50, 5)
    jobs = [now, job("this cell", "In [5]", 50, 4), job("old session", "In [6]", 12, 3, session="old")]
    previous = previous_run(jobs, now)
    assert previous is not None
    assert previous.job == "this cell"
