"""A program whose nodes run in another order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djinn_lab.srg.program import Program


def reordered(program: Program, order: Sequence[int]) -> Program:
    """Return the program with its nodes in ``order``, by their positions so far. Whether results stay the
    same is for the caller to know."""
    return msgspec.structs.replace(program, nodes=[program.nodes[node] for node in order])


def executed_prefix(order: Sequence[int], executed: int) -> int:
    """Return how many nodes of program order ran, counted up to the first that did not, when the first
    ``executed`` of ``order`` ran."""
    ran = set(order[:executed])
    return next((node for node in range(len(order)) if node not in ran), len(order))


def values_ahead(program: Program, order: Sequence[int], executed: int) -> list[int]:
    """Return the values of ``program.keep`` that were made by nodes behind :func:`executed_prefix`, when the
    first ``executed`` of ``order`` ran. ``program``: in program order."""
    prefix = executed_prefix(order, executed)
    early = {value for node in program.nodes[:prefix] for value in node.outputs}
    ahead = {value for node in order[:executed] if node >= prefix for value in program.nodes[node].outputs}
    sources = {source.value for source in program.sources}
    return [value for value in program.keep if value in ahead - early - sources]
