"""The building blocks of networks in a graph, found by what its ops compute and never by the names of
modules.

``find_patterns(srg)`` walks the nodes a few times in program order, so its time is linear in the graph.
Definitions: ``docs/srg.md``. Each kind has a finder of its own; a finder takes a :class:`Flow` and yields
patterns."""

from __future__ import annotations

from djinn_lab.srg.graph import SRG
from djinn_lab.srg.patterns.flow import Flow
from djinn_lab.srg.patterns.kinds import KINDS, Pattern, PatternKind
from djinn_lab.srg.patterns.layers import LAYER_FINDERS
from djinn_lab.srg.patterns.products import PRODUCT_FINDERS

__all__ = ["KINDS", "Pattern", "PatternKind", "find_patterns"]


def find_patterns(srg: SRG) -> tuple[Pattern, ...]:
    """Every pattern of the graph, by its first node. Patterns may share nodes: a residual connection joins
    what an attention or an MLP made."""
    flow = Flow(srg)
    found = [pattern for find in (*PRODUCT_FINDERS, *LAYER_FINDERS) for pattern in find(flow)]
    return tuple(sorted(found, key=lambda pattern: (pattern.nodes, pattern.kind)))
