"""Where a program's nodes are cut into blocks that may repeat."""

from __future__ import annotations

from collections.abc import Iterator

from djinn_lab.srg.program import Program

BLOCK_NODES_MIN = 24
BLOCK_NODES_MAX = 4096


def blocks(program: Program) -> Iterator[tuple[int, int]]:
    """Starts and ends: nodes are cut where a loop begins anew: the cell's line goes back, or another root
    module call begins."""
    scopes = program.scopes
    marks = [node.scope for node in program.nodes]
    start = line = call = 0
    last = -1
    for index, scope in enumerate(marks):
        if scope == last and index - start < BLOCK_NODES_MAX:
            continue
        last = scope
        here = scopes[scope]
        anew = here.line < line or (here.call not in (0, call))
        line, call = here.line, here.call or call
        if (anew and index - start >= BLOCK_NODES_MIN) or index - start >= BLOCK_NODES_MAX:
            yield start, index
            start = index
    if start < len(marks):
        yield start, len(marks)
