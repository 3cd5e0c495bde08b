"""Where values come from, and where they go: the ways through a graph that finders follow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from djinn_lab.srg.attention import LAYOUT as KEEPS_ORDER
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.ops import base_name, words
from djinn_lab.srg.patterns.kinds import Pattern

LAYOUT = KEEPS_ORDER | words("split split_with_sizes chunk unbind to lift_fresh narrow as_strided")
"""Ops that leave values as they are: other shapes, parts, dtypes."""
ACTIVATIONS = words(
    """relu gelu silu tanh sigmoid leaky_relu elu hardtanh hardswish hardsigmoid mish softplus erf relu6 selu
    celu log_sigmoid logsigmoid glu prelu _prelu_kernel threshold clamp_min hardtanh_"""
)
POINTWISE = (
    LAYOUT
    | ACTIVATIONS
    | words(
        """add sub mul div neg pow exp square clamp native_dropout dropout where masked_fill maximum minimum
        rsub abs sqrt reciprocal index index_select index_add index_put scatter_add gather cat stack sum"""
    )
)
"""What may stand between the two products of an MLP: activations with their parts, dropout, the routing of
tokens to experts."""


class Linear(NamedTuple):
    """A product with a weight. ``source``: the value that it reads, and ``weight``, before layout changes."""

    node: int
    source: int
    weight: int


_FACTORS = {
    "addmm": (1, 2),
    "mm": (0, 1),
    "linear": (0, 1),
    "matmul": (0, 1),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "_grouped_mm": (0, 1),
}
"""Where the factors of a product stand among its inputs."""


class Flow:
    """For one graph. ``names``: base op name of each node, in-place ones without their underscore."""

    def __init__(self, srg: SRG) -> None:
        self.srg = srg
        known: dict[str, str] = {}
        self.names = [known.setdefault(node.op, base_name(node.op).rstrip("_")) for node in srg.nodes]
        self.producer: dict[int, int] = {}
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        self._roots: dict[int, int] = {}
        for node, name in zip(srg.nodes, self.names, strict=True):
            for value in node.inputs:
                self.readers[value].append(node.id)
            for value in node.outputs:
                self.producer.setdefault(value, node.id)
                if name in LAYOUT and node.inputs:
                    self._roots[value] = self.root(node.inputs[0])

    def root(self, value: int) -> int:
        """Return what the value was before layout changes."""
        return self._roots.get(value, value)

    def is_weight(self, value: int) -> bool:
        """Return whether the value is a parameter or buffer, perhaps in another layout."""
        known = self.srg.values[self.root(value)]
        return known.producer is None and known.residency == "weight"

    def maker(self, value: int) -> int | None:
        """Return the node that made the value, before layout changes; None for a source."""
        return self.producer.get(self.root(value))

    @cached_property
    def linears(self) -> dict[int, Linear]:
        """Products with a weight, by node."""
        found = {}
        for node, name in zip(self.srg.nodes, self.names, strict=True):
            places = _FACTORS.get(name)
            if places is None or len(node.inputs) <= places[1]:
                continue
            left, right = node.inputs[places[0]], node.inputs[places[1]]
            weight, source = (right, left) if self.is_weight(right) else (left, right)
            shape = self.srg.values[self.root(weight)].shape
            if self.is_weight(weight) and not self.is_weight(source) and shape is not None and len(shape) > 1:
                found[node.id] = Linear(node.id, self.root(source), self.root(weight))
        return found

    def after(self, node: int) -> Iterator[int]:
        """Nodes that read what the node made, through layout changes."""
        pending = list(self.srg.nodes[node].outputs)
        while pending:
            for reader in self.readers.get(pending.pop(), ()):
                if self.names[reader] in LAYOUT:
                    pending += self.srg.nodes[reader].outputs
                else:
                    yield reader


Finder = Callable[[Flow], Iterator[Pattern]]
