"""Folded graphs and their drawings, made once and shared by all browser sessions of the process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.graph.figures import NodeFigures
from djinn_lab.dashboard.graph.folding import PartRange, Tree
from djinn_lab.dashboard.graph.scene import Scene, arrange
from djinn_lab.dashboard.widgets.chooser import WHOLE, CellPart, part_name
from djinn_lab.errors import PoolError
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.scheduler.schedule import ExecutionSchedule
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs

Key = TypeVar("Key")
Made = TypeVar("Made")
TREES_MAX = 8
SCENES_MAX = 16


class GraphStore:
    """Keep folded graphs and drawings, thread-safe; the least recently used entries are dropped first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trees: OrderedDict[tuple[str, CellPart, int], Tree] = OrderedDict()
        self._figures: OrderedDict[tuple[str, CellPart, int, bool], NodeFigures] = OrderedDict()
        self._scenes: WeakKeyDictionary[Tree, OrderedDict[frozenset[int], Scene]] = WeakKeyDictionary()

    def tree(self, reader: PoolClient, job: str, segment: CellPart, segments: int) -> Tree:
        """Return the folded graph of a part of a job's cell, which has ``segments`` so far. Raises PoolError
        where it has no ops."""

        def make() -> Tree:
            tree = _whole_tree(reader, job) if segment == WHOLE else _part_tree(reader, job, segment)
            if not tree.srg.nodes:
                raise PoolError("This cell ran no ops", "Choose another cell")
            return tree

        return self._get(self._trees, (job, segment, segments), make, TREES_MAX)

    def figures(self, reader: PoolClient, job: JobView, segment: CellPart, tree: Tree) -> NodeFigures:
        """Return the times and the memory of each node of a job's ``tree``."""

        def make() -> NodeFigures:
            return NodeFigures.of(read_schedule(reader, job.job, segment), len(tree.srg.nodes))

        key = (job.job, segment, job.segments, job.finished)
        return self._get(self._figures, key, make, TREES_MAX)

    def scene(self, tree: Tree, open_groups: frozenset[int]) -> Scene:
        """Return the drawing with ``open_groups`` expanded."""
        with self._lock:
            scenes = self._scenes.setdefault(tree, OrderedDict())
        return self._get(scenes, open_groups, lambda: arrange(tree, open_groups), SCENES_MAX)

    def _get(self, cache: OrderedDict[Key, Made], key: Key, make: Callable[[], Made], limit: int) -> Made:
        with self._lock:
            if key in cache:
                cache.move_to_end(key)
                return cache[key]
        made = make()
        with self._lock:
            cache[key] = made
            while len(cache) > limit:
                cache.popitem(last=False)
        return made


def read_schedule(reader: PoolClient, job: str, part: CellPart) -> ExecutionSchedule:
    """Read the schedule of a part of a job's cell."""
    return reader.schedule(job, None if part == WHOLE else part, whole=part == WHOLE)


def _part_tree(reader: PoolClient, job: str, segment: int | None) -> Tree:
    return Tree(SRG.from_program(reader.program(job, segment)))


def _whole_tree(reader: PoolClient, job: str) -> Tree:
    """Join the parts of a cell, each of which ends with a cut, into one graph."""
    programs = reader.programs(job)
    names = [part_name(cut) for cut in reader.job(job).cuts]
    parts: list[PartRange] = []
    first = 0
    for number, program in enumerate(programs):
        name = names[number] if number < len(names) else "up to the end"
        parts.append(PartRange(f"part {number + 1}: {name}", first, first + len(program.nodes)))
        first += len(program.nodes)
    return Tree(SRG.from_program(merge_programs(programs)), parts)
