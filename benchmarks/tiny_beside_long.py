"""Tiny cells of several sessions beside a long one on the same device: what each costs the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from statistics import median
from threading import Event, Thread
from time import perf_counter, sleep

import torch

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.pool.launch import start_pool, stop_pool

NAME = "tiny"
ALONE, NO_LONG = "no tiny cells", "no long cell"
SESSIONS, CELLS_PER_S = 4, 95.0
WIDTH, LONG_S, QUICK_LONG_S = 512, 3.0, 0.5
IDLE_PERCENT, TINY_MS = 10.0, 200.0


class TinyCells:
    """A session that sends cells of one op, each after the answer to the one before."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._x = torch.zeros(8)
        self.run_s = 0.0
        self._cell()

    def run_until(self, over: Event, taken_ms: list[float]) -> None:
        while not over.is_set():
            took_s = self._cell()
            taken_ms.append(took_s * 1e3)
            sleep(max(0.0, SESSIONS / CELLS_PER_S - took_s))

    def _cell(self) -> float:
        began_s = perf_counter()
        with self._session.capture("tiny") as cell:
            y = self._x + 1
        y.cpu()
        self.run_s += cell.report.run_s
        return perf_counter() - began_s


class Contest:
    """``p99_ms``: by contender, the 99th percentile of the tiny cells of each round. ``long_s``: the seconds
    of the long cells. ``tiny``: how many cells ran beside these."""

    def __init__(self, long: Session, tiny: list[Session], long_s: float) -> None:
        self._session = long
        self._weight = 2 * torch.randn(WIDTH, WIDTH) / WIDTH**0.5  # at half of it, products become denormal
        self._tiny = [TinyCells(session) for session in tiny]
        self.p99_ms: dict[str, list[float]] = {OURS: [], NO_LONG: []}
        self.long_s: dict[str, list[float]] = {OURS: [], ALONE: []}
        self.tiny = 0
        self._steps = 20
        self._long()
        self._steps = max(1, int(self._steps * long_s / self._long()[0]))
        self._long()

    def beside(self) -> float:
        """Return for how much of a long cell, in percent, the device ran nothing: beside tiny ones."""
        before_s = sum(one.run_s for one in self._tiny)
        with self._tiny_cells(OURS):
            took_s, run_s = self._long()
        self.long_s[OURS].append(took_s)
        return _idle(took_s, run_s + sum(one.run_s for one in self._tiny) - before_s)

    def alone(self) -> float:
        """Return the same of a long cell alone; the tiny ones run after it."""
        took_s, run_s = self._long()
        self.long_s[ALONE].append(took_s)
        with self._tiny_cells(NO_LONG):
            sleep(took_s)
        return _idle(took_s, run_s)

    def _long(self) -> tuple[float, float]:
        """Return its seconds, and for how many of them it ran."""
        began_s = perf_counter()
        with self._session.capture("long") as cell:
            y = self._weight
            for _ in range(self._steps):
                y = torch.tanh(y @ self._weight)
            total = y.sum()
        total.item()
        return perf_counter() - began_s, cell.report.run_s

    @contextmanager
    def _tiny_cells(self, contender: str) -> Iterator[None]:
        """Send tiny cells meanwhile."""
        over, taken_ms = Event(), list[float]()
        threads = [Thread(target=one.run_until, args=(over, taken_ms)) for one in self._tiny]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
        self.p99_ms[contender].append(sorted(taken_ms)[int(0.99 * len(taken_ms))])
        self.tiny += len(taken_ms) if contender == OURS else 0


def _idle(took_s: float, run_s: float) -> float:
    """Return the part in which nothing ran, in percent."""
    return 100 * max(0.0, 1 - run_s / took_s)


def measure(bench: Bench) -> list[Figure]:
    with _contest(QUICK_LONG_S if bench.quick else LONG_S) as contest:
        taken = bench.alternate({OURS: contest.beside, ALONE: contest.alone}, 11)
    rounds = len(taken[OURS])
    p99_ms = {name: samples[-rounds:] for name, samples in contest.p99_ms.items()}
    facts = {
        "sessions": SESSIONS,
        "tiny_cells_per_s": round(contest.tiny / sum(contest.long_s[OURS]), 1),
        "long_cell_s": {name: round(median(samples), 2) for name, samples in contest.long_s.items()},
    }
    idle, tiny = Goal(IDLE_PERCENT), Goal(TINY_MS)
    return [
        figure(NAME, "time of a long cell in which the device runs nothing", "%", taken, [idle], **facts),
        figure(NAME, "slowest percent of tiny cells beside a long one", "ms", p99_ms, [tiny], **facts),
    ]


@contextmanager
def _contest(long_s: float) -> Iterator[Contest]:
    with own_runtime(), ExitStack() as stack:
        info = start_pool(devices="cpu:1", threads=1, wait_s=START_TIMEOUT_S)
        stack.callback(stop_pool)
        names = ("long", *(f"tiny {number}" for number in range(SESSIONS)))
        long, *tiny = [
            stack.enter_context(closing(Session(info.url, info.token, default_profile(), name)))
            for name in names
        ]
        yield Contest(long, tiny, long_s)
