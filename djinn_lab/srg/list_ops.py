"""Ops on lists of tensors, as one op for each tensor.

The ops of optimizers (``_foreach_*``, ``_fused_*``) treat each tensor of their lists by itself. So they can
run one tensor after the other where the lists do not fit the device together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from djinn_lab.srg.program import Argument, Leaf, NodeRecord, Scalar, ScalarHole, Template, TensorHole

ON_LISTS = ("aten._foreach_", "aten._fused_")
"""How their names begin."""


class Part(NamedTuple):
    """The op for one tensor of each list. The template of ``node`` is ``template``, not one of a program."""

    template: Template
    node: NodeRecord


def parts_of(template: Template, node: NodeRecord) -> list[Part]:
    """Return the parts of an op, in order; none for an op that is one piece."""
    if not template.op.startswith(ON_LISTS):
        return []
    arguments = [*template.args, *template.kwargs.values()]
    count = next((len(one) for one in arguments if isinstance(one, list) and _holds_tensors(one)), 0)
    lists = [one for one in arguments if isinstance(one, list) and one]
    if count < 2 or any(len(one) != count for one in lists) or len(node.outputs) not in (0, count):
        return []
    return [_part(template, node, index, count) for index in range(count)]


def _part(template: Template, node: NodeRecord, index: int, count: int) -> Part:
    inputs, scalars = iter(node.inputs), iter(node.scalars)
    own_inputs: list[int | None] = []
    own_scalars: list[Scalar] = []
    for argument in (*template.args, *template.kwargs.values()):
        for place, leaf in enumerate(argument if isinstance(argument, list) else [argument]):
            own = place == index or not isinstance(argument, list)
            if isinstance(leaf, TensorHole):
                own_inputs += [next(inputs)] if own else islice(inputs, 1, 1)
            elif isinstance(leaf, ScalarHole):
                own_scalars += [next(scalars)] if own else islice(scalars, 1, 1)
    mine = slice(index, index + 1) if len(node.outputs) == count else slice(0)
    return Part(
        Template(
            template.op,
            [_sliced(one, index) for one in template.args],
            {name: _sliced(one, index) for name, one in template.kwargs.items()},
        ),
        NodeRecord(
            node.template,
            tuple(own_inputs),
            node.outputs[mine],
            node.output_metas[mine],
            node.storages[mine],
            node.scope,
            tuple(own_scalars),
        ),
    )


def _sliced(argument: Argument, index: int) -> Argument:
    return argument[index : index + 1] if isinstance(argument, list) else argument


def _holds_tensors(leaves: Sequence[Leaf]) -> bool:
    return any(isinstance(leaf, TensorHole) for leaf in leaves)
