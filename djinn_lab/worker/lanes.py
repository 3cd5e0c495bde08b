"""One direction of copies: a thread that does them piece by piece, those that are waited for first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter, sleep

BEHIND_S = 0.05
"""How much of the link's time may be caught up on while there is always something to copy: sleeps are longer
than asked for."""


class LaneTask:
    """``steps`` copies one piece between two of its yields, which say how many bytes went over the link.
    ``busy_s``: while some did. ``finish`` is called once, with what went wrong or None, on the lane's
    thread."""

    def __init__(
        self,
        transfer: int,
        steps: Iterator[int],
        finish: Callable[[LaneTask, Exception | None], None],
        expedited: bool,
    ) -> None:
        self.transfer = transfer
        self.steps = steps
        self.finish = finish
        self.expedited = expedited
        self.asked_at = perf_counter()
        self.began_at: float | None = None
        self.busy_s = 0.0

    @property
    def queued_s(self) -> float:
        return (self.began_at or perf_counter()) - self.asked_at


class Lane:
    """First come, first served in each of two classes; an expedited job passes the others between two
    pieces. ``link_s``: what the link takes for so many bytes."""

    def __init__(self, name: str, link_s: Callable[[int], float]) -> None:
        self._link_s = link_s
        self._changed = threading.Condition()
        self._expedited: deque[LaneTask] = deque()
        self._others: deque[LaneTask] = deque()
        self._free_at = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name=f"copies {name}", daemon=True)
        self._thread.start()

    def add(self, job: LaneTask) -> None:
        with self._changed:
            (self._expedited if job.expedited else self._others).append(job)
            self._changed.notify()

    def expedite(self, transfer: int) -> bool:
        """False when it is not (any more) in this lane."""
        with self._changed:
            for job in self._others:
                if job.transfer == transfer:
                    self._others.remove(job)
                    job.expedited = True
                    self._expedited.append(job)
                    return True
            return any(job.transfer == transfer for job in self._expedited)

    def stop(self) -> None:
        """Stop after the piece under way; queued jobs are not done."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            began = perf_counter()
            if job.began_at is None:
                job.began_at = began
            problem: Exception | None = None
            try:
                moved = next(job.steps)
                if moved:
                    self._pace(began, self._link_s(moved))
                    job.busy_s += perf_counter() - began
                continue
            except StopIteration:
                pass
            except Exception as error:  # noqa: BLE001 - whatever a copy raises is its result
                problem = error
            with self._changed:
                (self._expedited if job.expedited else self._others).remove(job)
            job.finish(job, problem)
            del job, problem  # what they refer to may hold memory, and the next one may come late

    def _next(self) -> LaneTask | None:
        with self._changed:
            while not self._stopping:
                if self._expedited:
                    return self._expedited[0]
                if self._others:
                    return self._others[0]
                self._changed.wait()
                self._free_at = perf_counter()  # a link that was idle has nothing to catch up on
            return None

    def _pace(self, began: float, link_s: float) -> None:
        """Sleep until the link would have done with what was copied since ``began``."""
        self._free_at = max(self._free_at, began - BEHIND_S) + link_s
        ahead = self._free_at - perf_counter()
        if ahead > 0:
            sleep(ahead)
