"""Finds attention in ATen structure: a fused op, or a softmax between two batched matmuls. It also
distinguishes the phases prefill and decode.

Names of modules play no part. One pass forward, in program order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from djinn_lab.srg.ops import base_name, words
from djinn_lab.srg.program import Phase, Program
from djinn_lab.srg.wiring import Call, Wiring, present, trace_wiring

_FUSED = words(
    """_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention scaled_dot_product_attention
    _scaled_dot_product_attention_math"""
)
_SOFTMAX = words("_softmax softmax _safe_softmax _masked_softmax")
_BATCHED = {"bmm": (0, 1), "baddbmm": (1, 2), "matmul": (0, 1)}
"""Where the two factors stand among a batched matmul's inputs."""
LAYOUT = words(
    """view _unsafe_view reshape expand transpose permute t unsqueeze squeeze clone contiguous slice alias
    detach _to_copy flatten unflatten _reshape_alias select"""
)
_ON_SCORES = LAYOUT | words(
    """mul div add sub masked_fill where native_dropout dropout mul_ div_ add_ masked_fill_ sub_ tanh
    nan_to_num cat"""
)
_MADE_BY = _FUSED | _SOFTMAX
"""Without any of these there is no attention."""
_INDICATIVE = _FUSED | _SOFTMAX | _BATCHED.keys() | LAYOUT | _ON_SCORES


@dataclass(frozen=True)
class Attention:
    """An attention that was found in a program. ``key`` and ``value`` are value ids traced back through views
    and copies to what produced them. ``nodes``: the fused op, or both products and the softmax; the last is
    ``node``. ``query``, ``values``: the ids of the tensors whose last size but one is the number of queries
    and of keys."""

    node: int
    nodes: tuple[int, ...]
    call: int
    query_length: int
    key_length: int
    key: int
    value: int
    query: int
    values: int


class _Scores(NamedTuple):
    """Scores or probabilities: of which keys, and the nodes that made them."""

    key: int
    nodes: tuple[int, ...]


class AttentionTracer:
    """Follow scores and probabilities forward, and layout changes backward. Every node must be visited, in
    program order. ``shape_of``: of a value, None while it depends on data."""

    def __init__(self, shape_of: Callable[[int], Sequence[int] | None]) -> None:
        self._shape_of = shape_of
        self._origin: dict[int, int] = {}
        self._scores: dict[int, _Scores] = {}
        self._probabilities: dict[int, _Scores] = {}
        self.found: list[Attention] = []

    def _root(self, value: int) -> int:
        return self._origin.get(value, value)

    def visit(self, index: int, name: str, inputs: Sequence[int], output: int | None, call: int) -> None:
        """``name``: the base name of the node's op. ``call``: of its root module."""
        if not inputs:
            return
        if name in _FUSED:
            if len(inputs) > 2:
                self._add((index,), call, *inputs[:3])
        elif name in _BATCHED:
            self._visit_product(index, name, inputs, output, call)
        elif output is not None:
            if name in _SOFTMAX:
                if (scores := self._scores.get(inputs[0])) is not None:
                    self._probabilities[output] = scores._replace(nodes=(*scores.nodes, index))
                return
            if name in LAYOUT:
                self._origin[output] = self._root(inputs[0])
            if name in _ON_SCORES:
                self._carry(inputs, output)

    def _carry(self, inputs: Sequence[int], output: int) -> None:
        for known in (self._scores, self._probabilities):
            if known and not known.keys().isdisjoint(inputs):
                known[output] = next(known[value] for value in inputs if value in known)

    def _visit_product(
        self, index: int, name: str, inputs: Sequence[int], output: int | None, call: int
    ) -> None:
        left_at, right_at = _BATCHED[name]
        if len(inputs) <= right_at or output is None:
            return
        left, right = inputs[left_at], inputs[right_at]
        if (probabilities := self._probabilities.get(left)) is not None:
            self._add((*probabilities.nodes, index), call, left, probabilities.key, right)
        else:
            self._scores[output] = _Scores(right, (index,))

    def _add(self, nodes: tuple[int, ...], call: int, query: int, key: int, value: int) -> None:
        """``query`` is the query itself where fused, else the probabilities (queries by keys)."""
        queries, keys, values = self._shape_of(query), self._shape_of(key), self._shape_of(value)
        if queries is None or keys is None or values is None or min(len(queries), len(values)) < 2:
            return
        self.found.append(
            Attention(
                node=nodes[-1],
                nodes=nodes,
                call=call,
                query_length=queries[-2],
                key_length=values[-2],
                key=self._root(key),
                value=self._root(value),
                query=query,
                values=value,
            )
        )


def find_attention(wiring: Wiring) -> list[Attention]:
    """Return every attention of the program, in program order."""
    names = set(wiring.names)
    if not names & _MADE_BY:
        return []
    tracer = AttentionTracer(wiring.shape)
    followed = _INDICATIVE if names & _SOFTMAX else _FUSED | LAYOUT
    indicative = [name in followed for name in wiring.names]
    scopes = wiring.program.scopes
    for index, node in enumerate(wiring.program.nodes):
        if indicative[node.template]:
            inputs, outputs = present(node.inputs), present(node.outputs)
            output = outputs[0] if outputs else None
            tracer.visit(index, wiring.names[node.template], inputs, output, scopes[node.scope].call)
    return tracer.found


def attended_metas(
    program: Program, calls: Sequence[Call], wiring: Wiring | None = None
) -> list[tuple[int, int]]:
    """Return the metas of ``query`` and ``values`` of every attention in a valid program, of equal calls at
    least once. ``calls``: the program's different ones. ``wiring``: traced here where none is given."""
    names = [base_name(template.op) for template in program.templates]
    if not _SOFTMAX.isdisjoint(names):
        wiring = wiring or trace_wiring(program)
        layouts = wiring.layouts
        pairs = [(layouts[one.query], layouts[one.values]) for one in find_attention(wiring)]
        return [(query, values) for query, values in pairs if query is not None and values is not None]
    fused = [present(call.inputs)[:3] for call in calls if names[call.template] in _FUSED]
    rank = [len(meta.shape) for meta in program.metas]
    return [(one[0], one[2]) for one in fused if len(one) == 3 and min(rank[one[0]], rank[one[2]]) > 1]


def refine_phases(program: Program, attentions: Sequence[Attention]) -> list[Phase]:
    """Return which phase of a workload each node belongs to.

    Capture distinguishes ``forward``, ``backward`` and ``optimizer``. In a program without either of the last
    two, a root module call whose attention reads more keys than it has queries is ``decode`` (it uses a KV
    cache), and one where they are equal and more than one is ``prefill``. Everything else stays as captured.
    """
    scopes = program.scopes
    phases = [scopes[node.scope].phase for node in program.nodes]
    if not attentions or {"backward", "optimizer"} & set(phases):
        return phases
    by_call: dict[int, Phase] = {}
    for attention in attentions:
        if attention.query_length < attention.key_length:
            by_call.setdefault(attention.call, "decode")
        elif attention.query_length > 1:
            by_call[attention.call] = "prefill"
    for index, node in enumerate(program.nodes):
        if phases[index] == "forward":
            phases[index] = by_call.get(scopes[node.scope].call, "forward")
    return phases
