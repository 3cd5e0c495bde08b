"""Equal blocks of nodes that follow one another, such as the layers of a model or the steps of a loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import eq
from typing import NamedTuple

PERIODS_MAX = 4
"""So many lengths of blocks are tried: the most frequent distances from a call to the next equal one."""


class Repeats(NamedTuple):
    """So many equal ``blocks`` of ``length`` nodes each; ``first`` is the first node of all."""

    first: int
    length: int
    blocks: int

    @property
    def last(self) -> int:
        """Return the last node of all."""
        return self.first + self.length * self.blocks - 1


def find_repeats(calls: Sequence[int]) -> Repeats | None:
    """Return the blocks that cover the most nodes, of several lengths the shortest; None where no two equal
    blocks follow one another. ``calls``: which call each node makes."""
    before: dict[int, int] = {}
    distances: list[int] = []
    for node, call in enumerate(calls):
        distances.append(node - before.get(call, node))
        before[call] = node
    lengths = [length for length, _ in Counter(distances).most_common(PERIODS_MAX + 1) if length]
    found = [repeats for length in lengths for repeats in _of_length(calls, length)]
    return max(found, key=lambda one: (one.length * one.blocks, -one.length), default=None)


def _of_length(calls: Sequence[int], length: int) -> Iterator[Repeats]:
    """Yield rows of at least two equal blocks of a length."""
    equal = bytes(map(eq, calls, calls[length:]))
    for run in re.finditer(rb"\x01{%d,}" % length, equal):
        yield Repeats(run.start(), length, len(run[0]) // length + 1)
