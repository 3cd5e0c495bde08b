"""Which storages are alive while ops run one after the other. A view keeps its base alive, so that liveness
is a matter of storages. Workspaces inside ops are not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple


class LiveBytes(NamedTuple):
    """``before``: alive before each op. ``during``: while it runs. ``after``: alive after the last one."""

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
