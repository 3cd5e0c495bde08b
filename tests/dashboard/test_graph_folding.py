"""Folding, layout and drawing of graphs, without a pool and without a browser."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab.dashboard.graph.details import details_html
from djinn_lab.dashboard.graph.folding import VISIBLE_MAX, Tree, find_repeats, short_op
from djinn_lab.dashboard.graph.layered import assign_layers, break_cycles, place
from djinn_lab.dashboard.graph.scene import arrange, box_columns, container_columns, link_columns, sentence
from djinn_lab.dashboard.graph.shading import PhaseShading
from djinn_lab.dashboard.widgets.theme import DARK, LIGHT
from djinn_lab.srg.families import FamilyWork
from djinn_lab.srg.graph import SRG, Node, Value


def graph(steps: int, layers: int = 4) -> SRG:
    """A decoder that generates ``steps`` tokens, with caches from step to step."""
    nodes: list[Node] = []
    values = {1: Value(1, 1, None, "weight", (8, 8), "float32", 256, 256, 256)}

    def add(op: str, module: str, call: int, line: int, phase: Any, inputs: list[int], flops: int = 0) -> int:
        number = len(nodes)
        output = 10_000_000 + number
        nodes.append(
            Node(
                id=number,
                op=f"aten.{op}.default",
                module=module,
                call=call,
                cell="[1]",
                line=line,
                phase=phase,
                modality="text",
                residency="activation",
                flops=flops,
                flops_counted=True,
                bytes_read=2048,
                bytes_written=1024,
                shape=(1, 8),
                dtype="float32",
                inputs=tuple(inputs),
                outputs=(output,),
                writes=(),
                is_view=False,
                charge=FamilyWork("pointwise", "float32", 1024.0),
            )
        )
        values[output] = Value(output, output, number, "activation", (1, 8), "float32", 32, 32, 0)
        return output

    token: int | None = None
    caches: dict[int, int] = {}
    for step in range(steps):
        phase = "decode" if step else "prefill"
        x = add("embedding", "Decoder.embed", step + 1, 3, phase, [1] if token is None else [1, token])
        for layer in range(layers):
            name = f"Decoder.h.{layer}"
            a = add("mm", f"{name}.attn.proj", step + 1, 3, phase, [x], 1000)
            if layer in caches:
                a = add("cat", f"{name}.attn", step + 1, 3, phase, [caches[layer], a])
            caches[layer] = a
            a = add("softmax", f"{name}.attn", step + 1, 3, phase, [a])
            x = add("add", name, step + 1, 3, phase, [x, a])
            x = add("mm", f"{name}.mlp", step + 1, 3, phase, [x], 4000)
        token = add("argmax", "", 0, 4, "other", [x])
    return SRG(tuple(nodes), values, (), (), f"steps {steps}", ())


def names(tree: Tree, index: int = 0) -> list[str]:
    return [tree.items[child].name for child in tree.items[index].children]


def test_groups_follow_module_paths_calls_and_lines() -> None:
    tree = Tree(graph(2))
    assert names(tree) == ["Decoder #1", "line 4", "Decoder #2", "line 4"]
    decoder = tree.items[tree.root.children[0]]
    assert names(tree, decoder.index) == ["embed", "h.0", "h.1", "h.2", "h.3"]
    block = tree.items[decoder.children[1]]
    assert names(tree, block.index) == ["attn", "add", "mlp"]
    assert block.path == "Decoder #1 / h.0"


def test_totals_are_sums_over_the_interval() -> None:
    tree = Tree(graph(3))
    whole = tree.totals(tree.root)
    assert whole.ops == len(tree.srg.nodes)
    assert whole.flops == sum(node.flops for node in tree.srg.nodes)
    parts = [tree.totals(tree.items[child]) for child in tree.root.children]
    assert sum(part.ops for part in parts) == whole.ops
    assert sum(part.bytes_read for part in parts) == whole.bytes_read
    assert parts[0].phase == "prefill"
    assert parts[2].phase == "decode"


def test_long_loops_fold_into_repeats_and_stay_below_the_limit() -> None:
    tree = Tree(graph(1000, layers=1))
    assert len(tree.visible(tree.start())) <= VISIBLE_MAX
    first = tree.items[tree.root.children[0]]
    while not first.name.startswith("repeat"):
        first = tree.items[first.children[0]]
    assert first.name == "repeat 1 of 1000" or first.name == "repeat 1 of 999"
    covered = [tree.items[child] for child in tree.root.children]
    assert covered[0].first == 0
    assert covered[-1].last == len(tree.srg.nodes)
    assert all(one.last == two.first for one, two in pairwise(covered))


def test_repeats_are_found_in_spite_of_call_numbers() -> None:
    found = find_repeats(["start", *(name for step in range(5) for name in (f"net #{step}", "line 3"))])
    assert found is not None
    assert (found.start, found.period, found.times) == (1, 2, 5)
    assert find_repeats(["a", "b", "c", "d", "e", "f"]) is None


def test_every_op_can_be_reached_by_opening_its_ancestors() -> None:
    tree = Tree(graph(40))
    for node in tree.srg.nodes[:: len(tree.srg.nodes) // 20]:
        item = tree.item_of_node(node.id)
        assert item.node == node.id
        shown = tree.visible({outer.index for outer in tree.ancestors(item)})
        assert item in shown


def test_search_is_a_regular_expression_over_ops_modules_lines_and_phases() -> None:
    tree = Tree(graph(2))
    assert {node.op for node in tree.matches("^aten.soft")} == {"aten.softmax.default"}
    assert all(".mlp" in node.module for node in tree.matches(r"h\.\d\.mlp"))
    assert {node.line for node in tree.matches("line 4")} == {4}
    assert len(tree.matches("decode")) > 10
    with pytest.raises(re.error):
        tree.matches("(")


def test_boxes_lie_inside_their_groups_and_do_not_overlap() -> None:
    tree = Tree(graph(2))
    opened = {
        item.index for item in tree.items if item.is_group and item.name in ("Decoder #1", "h.1", "attn")
    }
    scene = arrange(tree, opened)
    frames = {frame.item.index: frame for frame in scene.frames}
    for frame in scene.frames:
        if frame.item.parent:
            outer = frames[frame.item.parent]
            assert abs(frame.x - outer.x) + frame.width / 2 <= outer.width / 2 + 0.5
            assert abs(frame.y - outer.y) + frame.height / 2 <= outer.height / 2 + 0.5
    boxes = [frame for frame in scene.frames if not frame.opened]
    for number, one in enumerate(boxes):
        for two in boxes[number + 1 :]:
            apart_x = abs(one.x - two.x) >= (one.width + two.width) / 2 - 0.5
            apart_y = abs(one.y - two.y) >= (one.height + two.height) / 2 - 0.5
            assert apart_x or apart_y, (one.item.name, two.item.name)


def test_links_join_visible_boxes_and_none_points_upwards() -> None:
    tree = Tree(graph(3))
    scene = arrange(tree, tree.start())
    for link in scene.links:
        assert not scene.frames[link.source].opened
        assert not scene.frames[link.target].opened
        assert link.source != link.target
    assert link_columns(scene, backward=True)["x0"] == []
    assert len(link_columns(scene, backward=False)["x0"]) == len(scene.links)


def test_columns_of_a_scene_have_one_length_and_marks_show() -> None:
    tree = Tree(graph(2))
    scene = arrange(tree, {1})
    wanted = tree.root.children[1]
    for look in (LIGHT, DARK):
        columns = box_columns(tree, scene, look, PhaseShading(tree, look), frozenset({wanted}), None)
        assert len({len(values) for values in columns.values()}) == 1
        assert columns["line"][columns["item"].index(wanted)] == "#E69F00"
    containers = container_columns(scene, LIGHT)
    assert containers["item"] == [1]
    assert containers["label"] == ["▾ Decoder #1"]
    assert "folded groups" in sentence(tree, scene)


def test_details_show_every_field_of_an_op_and_escape_names() -> None:
    tree = Tree(graph(2))
    item = tree.item_of_node(2)
    html = details_html(tree, item)
    for part in (
        "aten.softmax.default",
        "Decoder.h.0.attn",
        "Cell line",
        "prefill",
        "text",
        "activation",
        "1 × 8",
    ):
        assert part in html
    group = details_html(tree, tree.items[1])
    assert "Most frequent" in group
    evil = msgspec.structs.replace(tree.srg.nodes[0], module="<script>")
    hostile = Tree(SRG((evil,), tree.srg.values, (), (), "x", ()))
    assert "<script>" not in details_html(hostile, hostile.item_of_node(0))


def test_search_and_details_know_patterns() -> None:
    tree = Tree(graph(2))
    found = [node.op for node in tree.matches("^embedding$")]
    assert found == ["aten.embedding.default"] * 2
    assert "Part of</th><td>embedding" in details_html(tree, tree.item_of_node(0))
    assert "2 × embedding" in details_html(tree, tree.root)


def test_op_names_are_short() -> None:
    assert short_op("aten.addmm.default") == "addmm"
    assert short_op("aten.add_.Tensor") == "add_.Tensor"


edges_strategy = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40)


@given(edges_strategy)
@settings(deadline=None)
def test_cycles_are_broken_and_layers_point_downwards(edges: list[tuple[int, int]]) -> None:
    forward, back = break_cycles(12, edges)
    layers = assign_layers(12, forward)
    assert all(layers[source] < layers[target] for source, target in forward)
    assert back <= set(edges)
    assert {frozenset(edge) for edge in forward} == {frozenset(edge) for edge in edges if edge[0] != edge[1]}


@given(edges_strategy, st.lists(st.floats(40, 300), min_size=12, max_size=12))
@settings(deadline=None)
def test_placed_boxes_never_overlap(edges: list[tuple[int, int]], widths: list[float]) -> None:
    sizes, heights = np.array(widths), np.full(12, 30.0)
    placement = place(sizes, heights, edges)
    for one in range(12):
        for two in range(one + 1, 12):
            apart_x = abs(placement.x[one] - placement.x[two]) >= (sizes[one] + sizes[two]) / 2 - 1e-6
            assert apart_x or abs(placement.y[one] - placement.y[two]) >= 30.0
    assert placement.x.min() >= 0
    assert placement.width >= sizes.max() - 1e-6
