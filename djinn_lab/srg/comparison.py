"""Compare two runs of a cell: which ops correspond, which are new or gone, and how long each took.

An op corresponds to the op of the other run with the same module, name and phase; of several such ops the
first to the first, the second to the second. Numbers of calls, cell lines and shapes do not count: they
differ between runs of one cell, and a different batch size is no different cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from djinn_lab.srg.graph import Node


class Run(NamedTuple):
    """One run: its nodes, and the seconds of each, by node id."""

    nodes: Sequence[Node]
    seconds: Sequence[float]


class RunComparison(msgspec.Struct, frozen=True):
    """Which ops of two runs correspond. ``pairs``: (op before, op after), by the op after. ``added``: ops of
    the later run alone; ``removed``: of the earlier run alone. ``anchors``: for each removed op, the op of
    the later run that it would follow (None: the later run has no ops)."""

    pairs: tuple[tuple[int, int], ...]
    added: tuple[int, ...]
    removed: tuple[int, ...]
    anchors: tuple[int | None, ...]


class Change(msgspec.Struct, frozen=True):
    """What changed in a set of ops. ``matched``: ops that both runs have. ``before_s``, ``after_s``: the
    seconds of all ops of either run."""

    matched: int = 0
    added: int = 0
    removed: int = 0
    before_s: float = 0.0
    after_s: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Return the later seconds over the earlier ones; None where one of the runs has no op of the set, or
        the earlier run took no time."""
        comparable = self.matched + self.removed > 0 and self.matched + self.added > 0
        return self.after_s / self.before_s if comparable and self.before_s > 0 else None

    @property
    def difference_s(self) -> float:
        """Return how many seconds longer the later run took."""
        return self.after_s - self.before_s


def compare_runs(before: Sequence[Node], after: Sequence[Node]) -> RunComparison:
    """Match the ops of two runs, in linear time."""
    waiting: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for node in reversed(before):
        waiting[_identity(node)].append(node.id)
    pairs: list[tuple[int, int]] = []
    added: list[int] = []
    for node in after:
        same = waiting.get(_identity(node))
        if same:
            pairs.append((same.pop(), node.id))
        else:
            added.append(node.id)
    partner = dict(pairs)
    removed = tuple(node.id for node in before if node.id not in partner)
    return RunComparison(tuple(pairs), tuple(added), removed, _anchors(before, after, partner))


def _identity(node: Node) -> tuple[str, str, str]:
    return node.module, node.op, node.phase


def _anchors(
    before: Sequence[Node], after: Sequence[Node], partner: dict[int, int]
) -> tuple[int | None, ...]:
    """Place each removed op behind the last op before it that is still there, of its own module if any."""
    found: list[int | None] = []
    last = after[0].id if after else None
    of_module: dict[str, int] = {}
    for node in before:
        if node.id in partner:
            last = of_module[node.module] = partner[node.id]
        else:
            found.append(of_module.get(node.module, last))
    return tuple(found)


def changes_by(
    comparison: RunComparison, before: Run, after: Run, name: Callable[[Node], str]
) -> dict[str, Change]:
    """Sum what changed over ops of one name, for each name of either run. A pair counts for the name of its
    later op."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one, other in comparison.pairs:
        key = name(after.nodes[other])
        counts[key][0] += 1
        seconds[key][0] += before.seconds[one]
        seconds[key][1] += after.seconds[other]
    for node in comparison.added:
        key = name(after.nodes[node])
        counts[key][1] += 1
        seconds[key][1] += after.seconds[node]
    for node in comparison.removed:
        key = name(before.nodes[node])
        counts[key][2] += 1
        seconds[key][0] += before.seconds[node]
    return {key: Change(*counts[key], *seconds[key]) for key in counts}
