"""In which order a program reads what its session holds."""

from __future__ import annotations

from typing import NamedTuple

from djinn_lab.srg.program import Program


class FirstUses(NamedTuple):
    """``values``: that are there before the program, or its rest, runs, by first use. The first op
    reads the first ``first`` of them."""

    values: tuple[int, ...]
    first: int


def first_uses(program: Program, executed: int = 0) -> FirstUses | None:
    """Return the first uses by the ops from number ``executed`` on; None where there are none. Before the
    first op only what the session holds is there, and not what comes with the program."""
    nodes = program.nodes[executed:]
    if not nodes:
        return None
    known = set() if executed else {source.value for source in program.sources if not source.held}
    found: dict[int, None] = {}
    first = 0
    for index, node in enumerate(nodes):
        for value in node.inputs:
            if value is not None and value not in known:
                found[value] = None
        if index == 0:
            first = len(found)
        known.update(value for value in node.outputs if value is not None)
    return FirstUses(tuple(found), first)
