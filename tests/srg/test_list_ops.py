"""Ops on lists, one tensor at a time."""

from __future__ import annotations

import pytest

from djinn_lab.srg.list_ops import parts_of
from djinn_lab.srg.program import Argument, NodeRecord, ScalarHole, Template, TensorHole

HOLE, NUMBER = TensorHole(), ScalarHole()


def node(
    inputs: tuple[int, ...], outputs: tuple[int, ...] = (), scalars: tuple[float, ...] = ()
) -> NodeRecord:
    return NodeRecord(0, inputs, outputs, (0,) * len(outputs), outputs, 0, scalars)


def test_each_part_has_one_tensor_of_each_list_and_all_that_is_no_list() -> None:
    template = Template(
        "aten._foreach_addcmul.ScalarList", [[HOLE] * 2, [HOLE] * 2, HOLE, [NUMBER] * 2, 3], {}
    )
    first, second = parts_of(template, node((1, 2, 11, 12, 5), (21, 22), (0.1, 0.2)))
    assert first.template.args == [[HOLE], [HOLE], HOLE, [NUMBER], 3]
    assert (first.node.inputs, first.node.outputs, first.node.scalars) == ((1, 11, 5), (21,), (0.1,))
    assert (second.node.inputs, second.node.outputs, second.node.scalars) == ((2, 12, 5), (22,), (0.2,))


def test_empty_lists_stay_empty() -> None:
    template = Template("aten._fused_adamw_.default", [[HOLE] * 3, [HOLE] * 3, []], {"lr": NUMBER})
    parts = parts_of(template, node((1, 2, 3, 4, 5, 6), scalars=(0.01,)))
    assert [part.node.inputs for part in parts] == [(1, 4), (2, 5), (3, 6)]
    assert all(part.template.args == [[HOLE], [HOLE], []] for part in parts)
    assert all(part.node.scalars == (0.01,) for part in parts)


@pytest.mark.parametrize(
    ("op", "arguments", "count"),
    [
        ("aten.cat.default", [[HOLE] * 2], 2),
        ("aten._foreach_neg_.default", [[HOLE]], 1),
        ("aten._foreach_add.List", [[HOLE] * 2, [HOLE] * 3], 5),
    ],
)
def test_others_are_one_piece(op: str, arguments: list[Argument], count: int) -> None:
    assert parts_of(Template(op, arguments, {}), node(tuple(range(count)))) == []
