"""How a cell's ops could be laid over several devices: as branches that run side by side, or as tasks that
feed each other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from djinn_lab.pool.gangs.grouping import COPIES, PART_S, group_tasks
from djinn_lab.scheduler.makespan import TaskGraph, lay
from djinn_lab.srg.branches import BranchFinder
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.program import Program
from djinn_lab.srg.tasks import Tasks, find_tasks

GRAINS = 24
"""Tasks shorter than this part of a device's share of the run time are joined with others."""
LOOKS = 100_000
"""Tasks laid in all while a schedule for one cell is searched: about a tenth of a second."""
TASK_OPS_MAX = 50_000
"""Cutting longer programs into tasks takes seconds; they are looked at for branches alone."""
EVEN = 1.1
"""Branches that take so many times their even share of the devices or less are good enough."""
CROWD = 400
"""More tasks than this are not laid: the search would hardly get round."""


class Layout(msgspec.Struct, frozen=True):
    """What runs where. ``places``: of every op, as in :func:`djinn_lab.srg.parting.part_program`. ``groups``:
    the branches or tasks that run as one part, the parts in the order in which they are begun. ``lanes``: on
    which of the devices each group is meant to run. ``branches``: how many there are; 0 where groups feed
    each other."""

    places: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    lanes: tuple[int, ...]
    branches: int = 0


class LayoutCache:
    """Cache the layouts of programs, by :func:`~djinn_lab.srg.plan_key.plan_key` and by the curves of the
    devices, which become known while a pool runs; the least recently used go first. ``ops_max``: of all
    programs that are remembered. Called from several threads."""

    def __init__(self, entries_max: int = 1000, ops_max: int = 4_000_000) -> None:
        self._entries_max = entries_max
        self._ops_max = ops_max
        self._known: OrderedDict[tuple[object, ...], tuple[Layout, ...]] = OrderedDict()
        self._ops = 0
        self._lock = threading.Lock()

    def find(
        self,
        program: Program,
        key: bytes | None,
        curves: DeviceCurves,
        seconds: Sequence[float],
        devices: int,
    ) -> tuple[Layout, ...]:
        """Return the layouts to choose from. ``seconds``: of every op, by these curves."""
        name = (key, curves.digest, devices, program.rng_state is None)
        with self._lock:
            if key is not None and name in self._known:
                self._known.move_to_end(name)
                return self._known[name]
        found = find_layouts(program, curves, seconds, devices)
        with self._lock:
            if key is not None and name not in self._known:
                self._known[name] = found
                self._ops += _places(found)
            while len(self._known) > self._entries_max or self._ops > self._ops_max:
                self._ops -= _places(self._known.popitem(last=False)[1])
        return found


def _places(found: Sequence[Layout]) -> int:
    return sum(len(layout.places) for layout in found)


def find_layouts(
    program: Program, curves: DeviceCurves, seconds: Sequence[float], devices: int
) -> tuple[Layout, ...]:
    """Return at most one layout of each kind, for that many equal devices."""
    found = []
    branches = BranchFinder(program, seconds).best(devices)
    if branches is not None:
        groups = branches.groups(devices)
        laid = tuple(tuple(group) for group in groups)
        found.append(Layout(branches.places, laid, tuple(range(len(groups))), len(branches.branch_s)))
        if branches.makespan_s(devices) * devices <= EVEN * sum(seconds):
            return tuple(found)
    if len(program.nodes) <= TASK_OPS_MAX:
        grain_s = max(2 * PART_S, sum(seconds) / (GRAINS * devices))
        tasks = find_tasks(program, seconds, grain_s)
        if tasks is not None and len(tasks.seconds) <= CROWD:
            found += _laid_tasks(tasks, curves, devices)
    return tuple(found)


def _laid_tasks(tasks: Tasks, curves: DeviceCurves, devices: int) -> list[Layout]:
    rate = curves.memory_bytes_per_s
    seconds = [
        s + COPIES / 2 * nbytes / rate for s, nbytes in zip(tasks.seconds, tasks.home_bytes, strict=True)
    ]
    edges = tuple((one, other, PART_S + COPIES * nbytes / rate) for one, other, nbytes in tasks.edges)
    laid = lay(TaskGraph(tuple((s,) * devices for s in seconds), edges), LOOKS)
    if len(set(laid.device)) < 2:
        return []
    groups, lanes = group_tasks(tasks, seconds, laid, rate)
    return [Layout(tasks.places, groups, lanes)]
