"""One cell's graph on two devices beside one of them: experts in every layer and a stacked recurrent network
on a live pool; and, in the model, schedules of tasks beside an exact solver and beside HEFT."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from time import perf_counter

import torch
from torch import nn

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.exact_makespan import exact_makespan_s
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.jobs import NO_TERMS, Terms
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.scheduler.makespan import TaskGraph, heft, lay

NAME = "devices"
ALONE = "one device"
EXACT, HEFT = "exact solver", "HEFT"
GRAPHS = 40
WIDTH = 384


class Experts(nn.Module):
    """Four layers of four experts, whose sum goes into the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(WIDTH, 1024), nn.GELU(), nn.Linear(1024, WIDTH)) for _ in range(4)
            )
            for _ in range(4)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            rows = self.norm(rows + torch.stack([expert(rows) for expert in layer]).sum(0))
        return rows


class Stack(nn.Module):
    """Four recurrent layers: each step of a layer needs the step before it, and the layer below."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(4))

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        hidden = [torch.zeros(steps.shape[1], WIDTH) for _ in self.cells]
        out = []
        for value in steps:
            for layer, cell in enumerate(self.cells):
                value = hidden[layer] = cell(value, hidden[layer])
            out.append(value)
        return torch.stack(out)


class Runner:
    """Cells of one model in one session. ``answers``: of the cells; ``ran_ms``: their times on the pool."""

    def __init__(self, session: Session, terms: Terms, make: Callable[[], nn.Module], train: bool) -> None:
        torch.manual_seed(0)
        self._session, self._terms, self._train = session, terms, train
        self._model = make()
        self._input = torch.randn(1024, WIDTH) if make is Experts else torch.randn(16, 256, WIDTH)
        self.answers: list[float] = []
        self.ran_ms: list[float] = []
        self.gang = ""

    def cell(self) -> float:
        began_s = perf_counter()
        with self._session.capture("devices", terms=self._terms) as cell:
            answer = self._step() if self._train else self._infer()
        self.answers.append(answer.item())
        self.ran_ms.append(cell.report.run_s * 1e3)
        self.gang = cell.report.gang
        return (perf_counter() - began_s) * 1e3

    def _infer(self) -> torch.Tensor:
        with torch.no_grad():
            total: torch.Tensor = self._model(self._input).abs().sum()
            return total

    def _step(self) -> torch.Tensor:
        loss: torch.Tensor = self._model(self._input).square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in self._model.parameters():
                assert weight.grad is not None
                weight.sub_(0.1 * weight.grad)
                weight.grad = None
        return loss.detach()


def measure(bench: Bench) -> list[Figure]:
    with own_runtime():
        try:
            info = start_pool(devices="cpu:2", threads=1, wait_s=START_TIMEOUT_S)
            live = [
                _live(bench, info, "experts in four layers, inference", Experts, train=False),
                _live(bench, info, "experts in four layers, training", Experts, train=True),
                _live(bench, info, "four recurrent layers, inference", Stack, train=False),
            ]
        finally:
            stop_pool()
    return [*live, *_modelled(3 if bench.quick else GRAPHS)]


def _live(bench: Bench, info: RuntimeInfo, name: str, make: Callable[[], nn.Module], train: bool) -> Figure:
    with ExitStack() as stack:

        def runner(terms: Terms) -> Runner:
            session = Session(info.url, info.token, default_profile(), "devices")
            return Runner(stack.enter_context(closing(session)), terms, make, train)

        together, alone = runner(Terms(gang=2, gang_min=2)), runner(NO_TERMS)
        contenders: dict[str, Callable[[], float]] = {OURS: together.cell, ALONE: alone.cell}
        count = len(bench.alternate(contenders, 15)[OURS])
        ran = {OURS: together.ran_ms[-count:], ALONE: alone.ran_ms[-count:]}
        facts = {"equal": together.answers == alone.answers, "gang": together.gang}
        return figure(NAME, f"{name}: run time on the pool", "ms", ran, [Goal(0.8, baseline=ALONE)], **facts)


def _modelled(graphs: int) -> list[Figure]:
    draw = random.Random(0)
    small = [_drawn(draw, draw.randint(8, 20), draw.randint(2, 3)) for _ in range(graphs)]
    large = [_drawn(draw, draw.randint(200, 400), draw.randint(2, 8)) for _ in range(graphs // 2)]
    few = {OURS: [lay(graph).makespan_s for graph in small], EXACT: [exact_makespan_s(one) for one in small]}
    few[HEFT] = [heft(graph).makespan_s for graph in small]
    many = {
        OURS: [lay(graph).makespan_s for graph in large],
        HEFT: [heft(graph).makespan_s for graph in large],
    }
    exact = Goal(1.05, "maximum", EXACT)
    never_worse = Goal(1.0, "maximum", HEFT)
    return [
        figure(NAME, "makespan of 8 to 20 tasks, in the model", "s", few, [exact]),
        figure(NAME, "makespan of 200 to 400 tasks, in the model", "s", many, [never_worse]),
    ]


def _drawn(draw: random.Random, tasks: int, devices: int) -> TaskGraph:
    """Draw tasks of up to ten seconds, half of them slower on some devices, with up to three edges into
    each."""
    travel_s = draw.choice((0.1, 0.5, 1.5))
    rows = []
    for _ in range(tasks):
        seconds = draw.randint(1, 100) / 10
        even = draw.random() < 0.5
        rows.append(tuple(seconds * (1 if even else draw.choice((1, 1.5, 2))) for _ in range(devices)))
    edges = [
        (before, task, travel_s * draw.randint(0, 10))
        for task in range(1, tasks)
        for before in draw.sample(range(max(0, task - 8), task), min(task, 8, draw.randint(0, 3)))
    ]
    return TaskGraph(tuple(rows), tuple(edges))
