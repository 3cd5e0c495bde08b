"""Filters: which nodes a demand may use at all, whatever is free on them. ``FILTERS`` is the one list of
them: placement, its caches, and the reasons of waiting jobs read it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, NamedTuple

from djinn_lab.jobs.request import ComputeNode, Demand

Asked = tuple[Hashable, ...]
"""What each filter reads of a demand. Demands that are equal in it may use the same nodes."""


class NodeFilter(NamedTuple):
    """A reason to exclude nodes. ``reads``: the field of a demand that it reads; ``allows``: whether a node
    meets the value of that field. ``excluded``: completes "of 4 nodes: 1 ..."; ``never``: why a job cannot
    start where the filter excludes every node."""

    name: str
    reads: str
    allows: Callable[[ComputeNode, Any], bool]
    excluded: str
    never: str


FILTERS = (
    NodeFilter(
        "labels",
        reads="selector",
        allows=lambda node, selector: selector <= node.labels,
        excluded="without its labels",
        never="no {place} has all the labels that it asks for",
    ),
    NodeFilter(
        "taints",
        reads="tolerates",
        allows=lambda node, tolerates: node.taints <= tolerates,
        excluded="tainted",
        never="it tolerates the taints of no {place} that it could use",
    ),
)


asked_of_nodes: Callable[[Demand], Asked] = attrgetter(*(one.reads for one in FILTERS))
"""Returns what a demand asks of nodes, by filter. Called for each placement that is tried."""


def excluded_by(node: ComputeNode, asked: Asked) -> NodeFilter | None:
    """Return the first filter that excludes the node, None when all allow it."""
    for one, value in zip(FILTERS, asked, strict=True):
        if not one.allows(node, value):
            return one
    return None
