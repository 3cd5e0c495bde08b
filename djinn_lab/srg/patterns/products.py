"""Patterns around products with weights: attention, MLPs, the head of a language model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from djinn_lab.srg.attention import AttentionTracer
from djinn_lab.srg.patterns.flow import ACTIVATIONS, LAYOUT, POINTWISE, Finder, Flow, Linear
from djinn_lab.srg.patterns.kinds import Pattern

STEPS_MAX = 256
"""Nodes that are looked at on the way from a product back to the ones before it."""
_CACHE_WRITES = frozenset(
    ("cat", "index_copy", "copy", "index_put", "_index_put_impl", "scatter", "slice_scatter")
)


def attention(flow: Flow) -> Iterator[Pattern]:
    """A fused op, or a softmax between two batched products."""
    tracer = AttentionTracer(lambda value: flow.srg.values[value].shape)
    for node in flow.srg.nodes:
        tracer.visit(node.id, flow.names[node.id], node.inputs, next(iter(node.outputs), None), node.call)
    for found in tracer.found:
        yield Pattern.of("attention", found.nodes)


def kv_append(flow: Flow) -> Iterator[Pattern]:
    """A key-value cache that grows by concatenation, or is written in place."""
    for node in flow.srg.nodes:
        if node.residency == "kv" and flow.names[node.id] in _CACHE_WRITES:
            yield Pattern.of("kv append", (node.id,))


class _Between(NamedTuple):
    """What lies between a product and the products before it."""

    linears: list[Linear]
    nodes: set[int]
    activated: bool
    multiplied: bool


def mlps_and_heads(flow: Flow) -> Iterator[Pattern]:
    """MLPs, and products onto the vocabulary that begin none."""
    begun: set[int] = set()
    for pattern, first in _mlps(flow):
        begun |= first
        yield pattern
    yield from _heads(flow, begun)


def _mlps(flow: Flow) -> Iterator[tuple[Pattern, set[int]]]:
    """Two products with weights, and nothing but pointwise ops with an activation between them. It is gated
    where the activation of one product is multiplied with another product of the same input. Each comes with
    the nodes of its first products."""
    for second in flow.linears.values():
        between = _between(flow, second)
        if between is None or not between.activated or not between.linears:
            continue
        inputs = {linear.source for linear in between.linears}
        if len(inputs) > 1:
            continue
        gated = between.multiplied and (len(between.linears) > 1 or _split(flow, between.linears[0]))
        first = {linear.node for linear in between.linears}
        yield Pattern.of("gated mlp" if gated else "mlp", (*first, *between.nodes, second.node)), first


def _between(flow: Flow, second: Linear) -> _Between | None:
    """Walk back from a product's input; None where anything but pointwise ops lies before it."""
    found = _Between([], set(), False, False)
    activated = multiplied = False
    pending, seen = [second.source], {second.source}
    while pending:
        value = pending.pop()
        maker = flow.maker(value)
        if maker is None:
            if flow.srg.values[flow.root(value)].residency in ("weight", "input"):
                continue
            return None
        if maker in flow.linears:
            found.linears.append(flow.linears[maker])
            continue
        name = flow.names[maker]
        if name not in POINTWISE or len(found.nodes) > STEPS_MAX:
            return None
        found.nodes.add(maker)
        activated |= name in ACTIVATIONS
        factors = [one for one in flow.srg.nodes[maker].inputs if not flow.is_weight(one)]
        multiplied |= name == "glu" or (name == "mul" and len(factors) > 1 and _differ(flow, factors))
        for before in flow.srg.nodes[maker].inputs:
            root = flow.root(before)
            if root not in seen:
                seen.add(root)
                pending.append(root)
    return found._replace(activated=activated, multiplied=multiplied)


def _differ(flow: Flow, factors: list[int]) -> bool:
    """Return whether two factors are different tensors of the same shape (no mask, scale or square)."""
    shapes = {flow.srg.values[value].shape for value in factors[:2]}
    return factors[0] != factors[1] and len(shapes) == 1


def _split(flow: Flow, linear: Linear) -> bool:
    """Return whether the product's result is read in parts: gate and value of one packed weight."""
    result = flow.srg.nodes[linear.node].outputs[0]
    pending, parts = [result], 0
    while pending:
        for reader in flow.readers.get(pending.pop(), ()):
            name = flow.names[reader]
            if name in ("split", "split_with_sizes", "chunk", "unbind", "slice", "glu", "select"):
                parts += max(1, len(flow.srg.nodes[reader].outputs))
            elif name in LAYOUT:
                pending += flow.srg.nodes[reader].outputs
    return parts > 1 or any(flow.names[reader] == "glu" for reader in flow.after(linear.node))


def _heads(flow: Flow, begun: set[int]) -> Iterator[Pattern]:
    """The last product of each root module call with a weight of the shape of an embedding's table (often the
    table itself), onto as many scores as that has rows. ``begun``: the first products of MLPs."""
    tables = set()
    for node, name in zip(flow.srg.nodes, flow.names, strict=True):
        if name == "embedding" and node.inputs:
            shape = flow.srg.values[flow.root(node.inputs[0])].shape
            if shape is not None and len(shape) == 2:
                tables.add(shape)
    heads: dict[int, int] = {}
    for linear in flow.linears.values():
        made, weight = flow.srg.nodes[linear.node].shape, flow.srg.values[linear.weight].shape
        if linear.node in begun or made is None or weight is None:
            continue
        if any(made[-1] == table[0] and sorted(weight) == sorted(table) for table in tables):
            heads[flow.srg.nodes[linear.node].call] = linear.node
    for head in heads.values():
        yield Pattern.of("lm head", (head,))


PRODUCT_FINDERS: tuple[Finder, ...] = (attention, kv_append, mlps_and_heads)
