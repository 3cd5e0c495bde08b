"""Which storages are alive while ops run one after the other. A view keeps its base alive, so that liveness
is a matter of storages. Workspaces inside ops are not counted. Also: in which order a program first reads
what its session holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import NamedTuple, TypeVar

from djinn_lab.srg.program import Program

Key = TypeVar("Key")


class LiveBytes(NamedTuple):
    """Bytes alive while a program runs. ``before``: alive before each op. ``during``: while it runs.
    ``after``: alive after the last one."""

    before: list[int]
    during: list[int]
    after: int


def positions_of(rows: Sequence[Sequence[object]]) -> Iterator[int]:
    """Yield, for each item of the rows one after the other, the position of its row."""
    return chain.from_iterable(map(repeat, range(len(rows)), map(len, rows)))


def last_touches(touched: Sequence[Sequence[Key]]) -> dict[Key, int]:
    """Map each storage to the position of the last op that reads or writes it. ``touched``: by position."""
    return dict(zip(chain.from_iterable(touched), positions_of(touched), strict=True))


def live_bytes(
    read: Iterable[Iterable[int]],
    made: Iterable[Iterable[int]],
    sizes: Mapping[int, int],
    resident: Collection[int],
    lasting: Collection[int],
) -> LiveBytes:
    """Follow the bytes alive through all ops.

    ``read``, ``made``: storages that each op reads, and that its results lie in, by position. ``sizes``: in
    bytes; storages without one are not counted. ``resident``: alive from the start. ``lasting``: alive to the
    end, the others until the last op that reads or makes them.
    """
    begun, last = set(resident), dict[int, int]()
    added: list[int] = []
    for position, (before, results) in enumerate(zip(read, made, strict=True)):
        more = 0
        for storage in before:
            last[storage] = position
        for storage in results:
            last[storage] = position
            if storage not in begun:
                begun.add(storage)
                more += sizes.get(storage, 0)
        added.append(more)
    freed = [0] * len(added)
    for storage, position in last.items():
        if storage not in lasting:
            freed[position] += sizes.get(storage, 0)
    return sweep(sum(sizes.get(storage, 0) for storage in set(resident)), added, freed)


def sweep(at_first: int, added: Sequence[int], freed: Sequence[int]) -> LiveBytes:
    """Follow the bytes alive: those ``at_first``, and what each op adds before it runs and frees after it."""
    live = at_first
    before, during = [], []
    for more, less in zip(added, freed, strict=True):
        before.append(live)
        live += more
        during.append(live)
        live -= less
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
    before: set[int | None] = {source.value for source in program.sources if executed or source.held}
    before.update(chain.from_iterable(node.outputs for node in program.nodes[:executed]))
    before.discard(None)
    read = chain.from_iterable(map(attrgetter("inputs"), nodes))
    first = len(before.intersection(nodes[0].inputs))
    return FirstUses(tuple(dict.fromkeys(filter(before.__contains__, read))), first)
