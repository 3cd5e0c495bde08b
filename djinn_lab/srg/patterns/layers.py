"""Patterns around single layers: embeddings, normalisations, convolutions, residual connections; and what
joins modalities or updates weights."""

from __future__ import annotations

from collections.abc import Iterator

from djinn_lab.srg.estimates import plain_name
from djinn_lab.srg.ops import words
from djinn_lab.srg.patterns.flow import ACTIVATIONS, LAYOUT, Finder, Flow
from djinn_lab.srg.patterns.kinds import Pattern

_EMBEDDINGS = frozenset(("embedding", "_embedding_bag", "_embedding_bag_forward_only"))
_NORMS = words(
    """native_layer_norm layer_norm native_group_norm group_norm native_batch_norm batch_norm
    _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update
    _batch_norm_no_update cudnn_batch_norm rms_norm _fused_rms_norm instance_norm _batch_norm_impl_index"""
)
_CONVOLUTIONS = words("convolution _convolution mkldnn_convolution conv1d conv2d conv3d cudnn_convolution")
_MEANS = words("mean var")
_SQUARES = words("pow square mul var")
_INVERSE_ROOTS = words("rsqrt sqrt pow")
_NEAR = words("add clamp clamp_min maximum reciprocal") | LAYOUT
_UPDATES = words("add sub addcdiv addcmul lerp mul copy")
RESIDUAL_STEPS_MAX = 96
"""Nodes on the way back through a block, along the input of each that carries the activations."""


def embeddings(flow: Flow) -> Iterator[Pattern]:
    """Rows of a weight, looked up by integers."""
    for node, name in zip(flow.srg.nodes, flow.names, strict=True):
        if name in _EMBEDDINGS and node.inputs and flow.is_weight(node.inputs[0]):
            yield Pattern.of("embedding", (node.id,))


def normalisations(flow: Flow) -> Iterator[Pattern]:
    """One op, or a product with the inverse root of a mean of squares."""
    for node, name in zip(flow.srg.nodes, flow.names, strict=True):
        if name in _NORMS:
            yield Pattern.of("normalisation", (node.id,))
        elif name in _INVERSE_ROOTS and (parts := _mean_of_squares(flow, node.id)):
            readers = [one for one in flow.after(node.id) if flow.names[one] in ("mul", "div")]
            if readers:
                yield Pattern.of("normalisation", (*parts, node.id, *readers))


def _mean_of_squares(flow: Flow, root: int) -> list[int]:
    """Nodes between an inverse root and the square below its mean; none where it is of something else."""
    parts: list[int] = []
    value, wanted = flow.srg.nodes[root].inputs[0], _MEANS
    for _ in range(8):
        maker = flow.maker(value)
        if maker is None:
            return []
        name = flow.names[maker]
        parts.append(maker)
        if name in wanted:
            if wanted is _SQUARES or name == "var":
                return parts
            wanted = _SQUARES
        elif name not in _NEAR:
            return []
        value = flow.srg.nodes[maker].inputs[0]
    return []


def convolutions(flow: Flow) -> Iterator[Pattern]:
    """A convolution, with the normalisation and the activation that follow it."""
    for node, name in zip(flow.srg.nodes, flow.names, strict=True):
        if name not in _CONVOLUTIONS:
            continue
        block = [node.id]
        for kinds in (_NORMS, ACTIVATIONS):
            following = [one for one in flow.after(block[-1]) if flow.names[one] in kinds]
            block += following[:1]
        yield Pattern.of("convolution block", block)


def residuals(flow: Flow) -> Iterator[Pattern]:
    """A sum of a value and of what products, convolutions or attention made from it."""
    for node, name in zip(flow.srg.nodes, flow.names, strict=True):
        if name != "add" or len(node.inputs) < 2:
            continue
        first, second = node.inputs[:2]
        if flow.srg.values[first].nbytes != flow.srg.values[second].nbytes:
            continue
        if flow.is_weight(first) or flow.is_weight(second) or flow.root(first) == flow.root(second):
            continue
        older, newer = sorted((first, second), key=lambda value: _made_at(flow, value))
        if _made_from(flow, newer, flow.root(older)):
            yield Pattern.of("residual", (node.id,))


def _made_at(flow: Flow, value: int) -> int:
    maker = flow.maker(value)
    return -1 if maker is None else maker


def _made_from(flow: Flow, value: int, goal: int) -> bool:
    """Return whether a product, convolution or attention lies on the way from ``goal`` to the value."""
    begun = _made_at(flow, goal)
    current, heavy = value, False
    for _ in range(RESIDUAL_STEPS_MAX):
        maker = flow.maker(current)
        if flow.root(current) == goal:
            return heavy
        if maker is None or maker < begun:
            return False
        if flow.root(goal) in map(flow.root, flow.srg.nodes[maker].inputs):
            return heavy or _is_heavy(flow, maker)
        heavy = heavy or _is_heavy(flow, maker)
        current = _carrier(flow, maker)
    return False


def _is_heavy(flow: Flow, node: int) -> bool:
    return node in flow.linears or flow.names[node] in _CONVOLUTIONS or flow.srg.nodes[node].flops_counted


def _carrier(flow: Flow, node: int) -> int:
    """Return the input that carries the activations: of a product the other factor than the weight, else the
    newest one."""
    if node in flow.linears:
        return flow.linears[node].source
    return max(flow.srg.nodes[node].inputs, key=lambda value: _made_at(flow, value), default=-1)


def optimizer_steps(flow: Flow) -> Iterator[Pattern]:
    """Updates of weights in place by gradients: a run of nodes of the phase ``optimizer``, or of ops that
    write weights."""
    run: list[int] = []
    for node, name in zip(flow.srg.nodes, flow.names, strict=True):
        writes_weight = any(flow.srg.values[value].residency == "weight" for value in node.writes)
        updates = writes_weight and (plain_name(name) in _UPDATES or name.startswith("_fused_"))
        if node.phase == "optimizer" or (updates and node.phase != "forward"):
            run.append(node.id)
        elif run and name not in LAYOUT:
            yield Pattern.of("optimizer step", run)
            run = []
    if run:
        yield Pattern.of("optimizer step", run)


def fusions(flow: Flow) -> Iterator[Pattern]:
    """An op that first joins values of two modalities."""
    nodes = flow.srg.nodes
    for node in nodes:
        if node.modality != "mixed":
            continue
        makers = [flow.producer[value] for value in node.inputs if value in flow.producer]
        kinds = {nodes[maker].modality for maker in makers} - {"unknown"}
        if len(kinds) > 1 and "mixed" not in kinds:
            yield Pattern.of("modality fusion", (node.id,))


LAYER_FINDERS: tuple[Finder, ...] = (
    embeddings,
    normalisations,
    convolutions,
    residuals,
    optimizer_steps,
    fusions,
)
