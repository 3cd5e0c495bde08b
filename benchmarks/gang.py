"""A search over four small networks as one cell, on two devices of one thread at once and on one of them: a
live pool, sessions that train step by step side by side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
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
    """``ran_ms``: from the moment at which the pool began with a cell to its end there, by cell."""

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
        self.told = ""

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
        self.told = cell.report.gang
        return took_ms

    def weights(self) -> list[list[float]]:
        return [one.detach().flatten().tolist() for model in self._models for one in model.parameters()]


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
            "gang": together.told,
            "branches": len(RATES),
            "steps": STEPS,
        }
        goal = Goal(0.75, baseline=ALONE)
        return [
            figure(NAME, "four trainings in one cell: run time on the pool", "ms", ran, [goal], **facts),
            figure(NAME, "four trainings in one cell: the whole cell", "ms", taken, **facts),
        ]
