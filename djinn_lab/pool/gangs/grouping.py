"""From tasks that are laid over devices to the parts that run there, and how long these take.

A part hands on what it made when it ends. So a device's tasks are cut where one of them waits for another
device, and after one that another device waits for. Each part costs some time of its own, so neighbours are
joined again where the whole is then predicted to take no longer."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from djinn_lab.scheduler.makespan import Laid
from djinn_lab.srg.tasks import Tasks

COPIES = 4
"""What travels is written and read once on its way out, and once on its way back."""
PART_S = 0.003
"""What a part costs beside its ops: a message there and back, a session, a few files."""

Groups = list[list[int]]


def makespan_s(seconds: Sequence[float], after: Sequence[Sequence[int]], devices: int) -> float:
    """Return when the last group ends, where each idle device begins the first group that waits for none.
    ``seconds``: of every group; ``after``: the groups that it waits for. Infinite where some wait for each
    other."""
    waits = [len(before) for before in after]
    next_of: list[list[int]] = [[] for _ in after]
    for group, before in enumerate(after):
        for one in before:
            next_of[one].append(group)
    ready = [group for group, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now_s, done = 0.0, 0
    while ready or running:
        while ready and len(running) < devices:
            group = heapq.heappop(ready)
            heapq.heappush(running, (now_s + seconds[group], group))
        now_s, ended = heapq.heappop(running)
        done += 1
        for group in next_of[ended]:
            waits[group] -= 1
            if not waits[group]:
                heapq.heappush(ready, group)
    return now_s if done == len(after) else float("inf")


def group_tasks(
    tasks: Tasks, seconds: Sequence[float], laid: Laid, bytes_per_s: float
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return the groups of tasks in the order in which they are begun, and the device of each. ``seconds``:
    of every task with what it reads of the session. ``bytes_per_s``: at which a device copies."""
    return _Grouping(tasks, seconds, laid, bytes_per_s).groups()


class _Grouping:
    def __init__(self, tasks: Tasks, seconds: Sequence[float], laid: Laid, bytes_per_s: float) -> None:
        self._seconds, self._laid = seconds, laid
        self._rate = bytes_per_s
        self._before: list[list[tuple[int, int]]] = [[] for _ in seconds]
        self._after: list[list[int]] = [[] for _ in seconds]
        for one, other, nbytes in tasks.edges:
            self._before[other].append((one, nbytes))
            self._after[one].append(other)

    def groups(self) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        groups = self._cut()
        best_s, joining = self._makespan_s(groups), True
        while joining:
            joining = False
            for number in range(len(groups)):
                tried = self._joined(groups, number)
                took_s = float("inf") if tried is None else self._makespan_s(tried)
                if tried is not None and took_s <= best_s:
                    groups, best_s, joining = tried, took_s, True
                    break
        device = self._laid.device
        return tuple(tuple(sorted(group)) for group in groups), tuple(device[group[0]] for group in groups)

    def _cut(self) -> Groups:
        device = self._laid.device
        open_groups: dict[int, list[int]] = {}
        groups: Groups = []
        for task in self._laid.order():
            where = device[task]
            apart = any(device[one] != where for one, _ in self._before[task])
            if where not in open_groups or apart:
                open_groups[where] = []
                groups.append(open_groups[where])
            open_groups[where].append(task)
            if any(device[one] != where for one in self._after[task]):
                del open_groups[where]
        return groups

    def _joined(self, groups: Groups, number: int) -> Groups | None:
        """Return the groups with one of them joined to the next one on its device."""
        device = self._laid.device
        where = device[groups[number][0]]
        for other in range(number + 1, len(groups)):
            if device[groups[other][0]] == where:
                both = groups[number] + groups[other]
                return [both if n == number else group for n, group in enumerate(groups) if n != other]
        return None

    def _makespan_s(self, groups: Groups) -> float:
        group_of = {task: number for number, group in enumerate(groups) for task in group}
        seconds = [PART_S + sum(self._seconds[task] for task in group) for group in groups]
        after: list[set[int]] = [set() for _ in groups]
        brought: list[dict[int, int]] = [{} for _ in groups]
        for task, before in enumerate(self._before):
            for one, nbytes in before:
                source, target = group_of[one], group_of[task]
                if source != target:
                    after[target].add(source)
                    brought[target][one] = max(nbytes, brought[target].get(one, 0))
        sent: dict[int, int] = {}
        for number, values in enumerate(brought):
            seconds[number] += COPIES / 2 * sum(values.values()) / self._rate
            for task, nbytes in values.items():
                sent[task] = max(nbytes, sent.get(task, 0))
        for task, nbytes in sent.items():
            seconds[group_of[task]] += COPIES / 2 * nbytes / self._rate
        lists = [sorted(one) for one in after]
        return makespan_s(seconds, lists, len(set(self._laid.device)))
