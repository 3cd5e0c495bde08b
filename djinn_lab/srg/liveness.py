"""Which storages are alive while ops run one after the other. A view keeps its base alive, so that liveness
is a matter of storages. Workspaces inside ops are not counted. Also: in which order a program first reads
what its session holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from djinn_lab.srg.program import Program


class LiveBytes(NamedTuple):
    """Bytes alive while a program runs. ``before``: alive before each op. ``during``: while it runs.
    ``after``: alive after the last one."""

    before: list[int]
    during: list[int]
    after: int


def last_touches(touched: Iterable[Iterable[int]]) -> dict[int, int]:
    """Map each storage to the position of the last op that reads or writes it. ``touched``: by position."""
    last: dict[int, int] = {}
    for position, storages in enumerate(touched):
        for storage in storages:
            last[storage] = position
    return last


def live_bytes(
    made: Iterable[Iterable[int]],
    last_touch: Mapping[int, int],
    sizes: Mapping[int, int],
    resident: Collection[int],
    lasting: Collection[int],
) -> LiveBytes:
    """Follow the bytes alive through all ops.

    ``made``: storages that each op writes, by position. ``sizes``: in bytes; storages without one are not
    counted. ``resident``: alive from the start. ``lasting``: alive to the end, the others until their last
    touch.
    """
    freed: dict[int, int] = {}
    for storage, position in last_touch.items():
        if storage not in lasting:
            freed[position] = freed.get(position, 0) + sizes.get(storage, 0)
    alive = set(resident)
    live = sum(sizes.get(storage, 0) for storage in alive)
    before, during = [], []
    for position, storages in enumerate(made):
        before.append(live)
        for storage in storages:
            if storage not in alive:
                alive.add(storage)
                live += sizes.get(storage, 0)
        during.append(live)
        live -= freed.get(position, 0)
    return LiveBytes(before, during, live)


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
