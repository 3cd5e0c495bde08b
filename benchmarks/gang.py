"""A search over four small networks as one cell, on two devices of one thread at once and on one of them: a
live pool, sessions that train step by step side by side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure, skipped
from djinn_lab.client.cell import Cell
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.errors import PoolError
from djinn_lab.jobs import NO_TERMS, Terms
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "gang"
RATES = (0.1, 0.05, 0.02, 0.01)
STEPS = 10
ROWS = 4096
WIDTH = 256
ALONE = "one device"


class Search:
    """``cells``: how many have run. ``ran_ms``: from the moment at which the pool began with a cell to its
    end there, by cell."""

    def __init__(self, session: Session, terms: Terms) -> None:
        torch.manual_seed(0)
        self._session, self._terms = session, terms
        self._models = [nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)) for _ in RATES]
        self._optimizers = [
            torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
            for model, rate in zip(self._models, RATES, strict=True)
        ]
        self._images, self._labels = torch.randn(ROWS, 64), torch.randint(0, 8, (ROWS,))
        self.ran_ms: list[float] = []
        self.gang_report = ""
        self.cells = 0

    @property
    def name(self) -> str:
        """Of its session."""
        return self._session.welcome.session

    def cell(self) -> float:
        """The whole cell, in ms."""
        began_s = perf_counter()
        with self._session.capture("search", terms=self._terms) as cell:
            for model, optimizer in zip(self._models, self._optimizers, strict=True):
                for _ in range(STEPS):
                    optimizer.zero_grad()
                    F.cross_entropy(model(self._images), self._labels).backward()
                    optimizer.step()
        took_ms = (perf_counter() - began_s) * 1e3
        self.ran_ms.append(_ran_s(cell) * 1e3)
        self.gang_report = cell.report.gang
        self.cells += 1
        return took_ms

    def weights(self) -> list[list[float]]:
        return [one.detach().flatten().tolist() for model in self._models for one in model.parameters()]


class Disturbed:
    """Cells of a search that are preempted once each. ``free_ms``: from the request until all devices are
    free. ``end_ms``: until all would have been free without preemption, the rest of the cell included."""

    def __init__(self, info: RuntimeInfo, search: Search) -> None:
        self._rest = PoolClient(info.url, info.token)
        self._search = search
        self.free_ms: list[float] = []
        self.end_ms: list[float] = []

    def cell(self) -> None:
        """One that ends before it is asked says nothing."""
        thread = Thread(target=self._search.cell)
        thread.start()
        job = ""
        while thread.is_alive() and not job:
            sleep(0.01)
            jobs = self._rest.jobs(state="RUNNING", limit=5)
            own = [one for one in jobs if one.session == self._search.name and one.ops_done]
            if own:
                job = own[0].job
                with suppress(PoolError):  # it has just ended
                    self._rest.preempt(job)
        thread.join()
        if job:
            self._note({line.event: line.at for line in self._rest.job(job).events}, job)

    def _note(self, at_s: dict[str, float], job: str) -> None:
        if "SegmentPreempted" not in at_s:
            return
        asked_s = at_s["PreemptRequested"]
        aside_s = self._rest.job(job).stages["preempted"]
        self.free_ms.append((at_s["SegmentPreempted"] - asked_s) * 1e3)
        self.end_ms.append((at_s["SegmentFinished"] - asked_s - aside_s) * 1e3)


def _ran_s(cell: Cell) -> float:
    stages = cell.report.stages
    return max(cell.report.run_s, stages.get("run", 0.0)) + stages.get("load", 0.0) + stages.get("fetch", 0.0)


def measure(bench: Bench) -> list[Figure]:
    with own_runtime():
        try:
            return _measure(bench, start_pool(devices="cpu:2", threads=1, wait_s=START_TIMEOUT_S))
        finally:
            stop_pool()


def _measure(bench: Bench, info: RuntimeInfo) -> list[Figure]:
    with ExitStack() as stack:

        def search(terms: Terms) -> Search:
            session = Session(info.url, info.token, default_profile(), "search")
            return Search(stack.enter_context(closing(session)), terms)

        together, alone = search(Terms(gang=2, gang_min=2)), search(NO_TERMS)
        contenders: dict[str, Callable[[], float]] = {OURS: together.cell, ALONE: alone.cell}
        taken = bench.alternate(contenders, 20)
        count = len(taken[OURS])
        ran = {OURS: together.ran_ms[-count:], ALONE: alone.ran_ms[-count:]}
        facts: dict[str, Any] = {
            "equal": together.weights() == alone.weights(),
            "gang": together.gang_report,
            "branches": len(RATES),
            "steps": STEPS,
        }
        goal = Goal(0.75, baseline=ALONE)
        return [
            figure(NAME, "four trainings in one cell: run time on the pool", "ms", ran, [goal], **facts),
            figure(NAME, "four trainings in one cell: the whole cell", "ms", taken, **facts),
            _preempted(bench, info, search(Terms(gang=2, gang_min=2)), search(NO_TERMS)),
        ]


def _preempted(bench: Bench, info: RuntimeInfo, moving: Search, alone: Search) -> Figure:
    disturbed = Disturbed(info, moving)
    rounds = bench.rounds(20, 2)
    while len(disturbed.free_ms) < rounds and moving.cells < 5 * rounds:
        disturbed.cell()
    title = "a gang is preempted: until its devices are free"
    if not disturbed.free_ms:
        return skipped(NAME, title, "ms", "no cell ran long enough to be asked")
    for _ in range(moving.cells):
        alone.cell()
    taken = {OURS: disturbed.free_ms, "waiting for its end": disturbed.end_ms}
    goal = Goal(50, "p99")
    return figure(NAME, title, "ms", taken, [goal], equal=moving.weights() == alone.weights())
