"""Which phase of a workload a node belongs to.

Capture distinguishes ``forward``, ``backward`` and ``optimizer``. In a program without either of the last
two, a root module call whose attention reads more keys than it has queries is ``decode`` (it uses a KV
cache), and one where they are equal and more than one is ``prefill``. Everything else stays as captured.
"""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.srg.attention import Attention
from djinn_lab.srg.program import Phase, Program


def refine_phases(program: Program, attentions: Sequence[Attention]) -> list[Phase]:
    """One phase per node."""
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
