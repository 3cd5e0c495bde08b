"""Folded graphs and their drawings, made once and shared by all browser sessions of the process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.graph.folding import Tree
from djinn_lab.dashboard.graph.scene import Scene, arrange
from djinn_lab.srg.graph import SRG

Key = TypeVar("Key")
Made = TypeVar("Made")
TREES_MAX = 8
SCENES_MAX = 16


class GraphStore:
    """Keep folded graphs and drawings, thread-safe; the least recently used entries are dropped first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trees: OrderedDict[tuple[str, int | None, int], Tree] = OrderedDict()
        self._scenes: WeakKeyDictionary[Tree, OrderedDict[frozenset[int], Scene]] = WeakKeyDictionary()

    def tree(self, reader: PoolClient, job: str, segment: int | None, segments: int) -> Tree:
        """Return the folded graph of a job's segment (None: its largest of ``segments``)."""

        def make() -> Tree:
            return Tree(SRG.from_program(reader.program(job, segment)))

        return self._get(self._trees, (job, segment, segments), make, TREES_MAX)

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
