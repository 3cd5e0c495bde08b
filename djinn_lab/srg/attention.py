"""Finds attention in ATen structure: a fused op, or a softmax between two batched matmuls. It also
distinguishes the phases prefill and decode.

Names of modules play no part. One pass forward, in program order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from djinn_lab.srg.ops import words
from djinn_lab.srg.program import Phase, Program
from djinn_lab.srg.wiring import Wiring

_FUSED = words(
    """_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention scaled_dot_product_attention
    _scaled_dot_product_attention_math"""
)
_SOFTMAX = words("_softmax softmax _safe_softmax _masked_softmax")
_BATCHED = {"bmm": (0, 1), "baddbmm": (1, 2), "matmul": (0, 1)}
"""Where the two factors stand among a batched matmul's inputs."""
_LAYOUT = words(
    """view _unsafe_view reshape expand transpose permute t unsqueeze squeeze clone contiguous slice alias
    detach _to_copy flatten unflatten _reshape_alias select"""
)
_ON_SCORES = _LAYOUT | words(
    """mul div add sub masked_fill where native_dropout dropout mul_ div_ add_ masked_fill_ sub_ tanh
    nan_to_num"""
)
_INDICATIVE = _FUSED | _SOFTMAX | _BATCHED.keys() | _LAYOUT | _ON_SCORES


@dataclass(frozen=True)
class Attention:
    """An attention that was found in a program. ``key`` and ``value`` are value ids traced back through views
    and copies to what produced them."""

    node: int
    call: int
    query_length: int
    key_length: int
    key: int
    value: int


class _Tracer:
    """Follows scores and probabilities forward, and layout changes backward."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._origin: dict[int, int] = {}
        self._scores: dict[int, int] = {}
        self._probabilities: dict[int, int] = {}
        self.found: list[Attention] = []

    def _root(self, value: int) -> int:
        return self._origin.get(value, value)

    def visit(self, index: int) -> None:
        node = self._wiring.program.nodes[index]
        name = self._wiring.names[node.template]
        inputs = [value for value in node.inputs if value is not None]
        output = next((value for value in node.outputs if value is not None), None)
        if not inputs:
            return
        if name in _FUSED:
            self._add(index, *inputs[:3])
        elif name in _BATCHED:
            self._visit_product(index, name, inputs, output)
        elif output is not None:
            if name in _SOFTMAX:
                if (key := self._scores.get(inputs[0])) is not None:
                    self._probabilities[output] = key
                return
            if name in _LAYOUT:
                self._origin[output] = self._root(inputs[0])
            if name in _ON_SCORES:
                self._carry(inputs, output)

    def _carry(self, inputs: list[int], output: int) -> None:
        for known in (self._scores, self._probabilities):
            key = next((known[value] for value in inputs if value in known), None)
            if key is not None:
                known[output] = key

    def _visit_product(self, index: int, name: str, inputs: list[int], output: int | None) -> None:
        left_at, right_at = _BATCHED[name]
        if len(inputs) <= right_at or output is None:
            return
        left, right = inputs[left_at], inputs[right_at]
        if left in self._probabilities:
            self._add(index, left, self._probabilities[left], right)
        else:
            self._scores[output] = right

    def _add(self, index: int, query: int, key: int, value: int) -> None:
        """``query`` is the query itself where fused, else the probabilities (queries by keys)."""
        metas = self._wiring.metas
        query_meta, key_meta, value_meta = metas[query], metas[key], metas[value]
        if query_meta is None or key_meta is None or value_meta is None or len(value_meta.shape) < 2:
            return
        self.found.append(
            Attention(
                node=index,
                call=self._wiring.program.scopes[self._wiring.program.nodes[index].scope].call,
                query_length=query_meta.shape[-2],
                key_length=value_meta.shape[-2],
                key=self._root(key),
                value=self._root(value),
            )
        )


def find_attention(wiring: Wiring) -> list[Attention]:
    """Return every attention of the program, in program order."""
    tracer = _Tracer(wiring)
    indicative = [name in _INDICATIVE for name in wiring.names]
    for index, node in enumerate(wiring.program.nodes):
        if indicative[node.template]:
            tracer.visit(index)
    return tracer.found


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
