"""Where a program's nodes are cut into blocks that may repeat."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from djinn_lab.srg.program import Program, Scope

BLOCK_NODES_MIN = 24
"""Between two beginnings of a loop."""
BLOCK_NODES_MAX = 4096
MARKS = 8
"""One in so many modules begins a block."""


def blocks(program: Program) -> Iterator[tuple[int, int]]:
    """Starts and ends. Nodes are cut where a loop begins anew (the cell's line goes back, or another root
    module call begins), and within an iteration before modules whose name says so: thus also a program that
    begins or ends in the middle of an iteration consists of blocks that came before."""
    scopes = program.scopes
    marked = [_is_mark(scope) for scope in scopes]
    start = line = call = 0
    last = -1
    for index, node in enumerate(program.nodes):
        scope = node.scope
        if scope == last and index - start < BLOCK_NODES_MAX:
            continue
        here = scopes[scope]
        anew = here.line < line or (here.call not in (0, call))
        cut = (anew and index - start >= BLOCK_NODES_MIN) or (
            marked[scope] and scope != last and index > start
        )
        line, call, last = here.line, here.call or call, scope
        if cut or index - start >= BLOCK_NODES_MAX:
            yield start, index
            start = index
    if start < len(program.nodes):
        yield start, len(program.nodes)


def _is_mark(scope: Scope) -> bool:
    return bool(scope.module) and crc32(f"{scope.module} {scope.phase}".encode()) % MARKS == 0
