"""Measure how long one op takes to record, when its shapes were seen before (hot) and when not (cold)."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.bench import Bench
from benchmarks.capture_contenders import Contender, Djinn, Eager, Fake, TorchDispatch, TorchLazy
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.samples import Summary, scaled

NAME = "capture"
HOT_REPEATS = 64
COLD_SHAPES = 24
FIRST_COLD_SIZE = 65
WIDTH = 8
HOT_GOALS = (Goal(1.5, baseline="eager"), Goal(0.5, baseline="torch._lazy"))
STEP_GOALS = (Goal(1.3, baseline="eager"),)
COLD_GOALS = (Goal(60),)
EMPTY_RECORDER = "an empty recorder"
"""Measured on elementwise ops, where its results are right."""


def _pointwise(x: torch.Tensor, w: torch.Tensor) -> None:
    ((x + x) * x).relu()


def _matmul(x: torch.Tensor, w: torch.Tensor) -> None:
    torch.mm(x, w)


def _view(x: torch.Tensor, w: torch.Tensor) -> None:
    x.view(WIDTH, -1)
    x.transpose(0, 1)
    x[1:5]


def _in_place(x: torch.Tensor, w: torch.Tensor) -> None:
    x.mul_(x)


KINDS: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {
    "pointwise": _pointwise,
    "mm": _matmul,
    "view": _view,
    "in-place": _in_place,
}


class Block(ABC):
    """Some ops of one kind, taken by one contender, timed together. ``cold``: with shapes that this
    contender sees for the first time."""

    def __init__(self, contender: Contender, cold: bool) -> None:
        self.contender = contender
        self.cold = cold
        self._sizes = itertools.count(FIRST_COLD_SIZE)
        self.walls_s: list[float] = []

    def sample(self) -> float:
        """Seconds of this thread's CPU time for the whole block; those on the wall go to ``walls_s``."""
        with self.contender.scope():
            self.prepare()
            self.contender.settle()
            wall_started, started = perf_counter(), thread_time()
            self.ops()
            elapsed_s = thread_time() - started
            self.walls_s.append(perf_counter() - wall_started)
            self.contender.settle()
        return elapsed_s

    def size(self) -> int:
        return next(self._sizes) if self.cold else FIRST_COLD_SIZE

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def ops(self) -> None: ...


class SingleOps(Block):
    def __init__(
        self, contender: Contender, cold: bool, op: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        super().__init__(contender, cold)
        self._op = op
        self._inputs: list[torch.Tensor] = []

    def prepare(self) -> None:
        device = self.contender.device
        self._weight = torch.ones(WIDTH, WIDTH, device=device)
        if self.cold:
            self._inputs = [torch.ones(self.size(), WIDTH, device=device) for _ in range(COLD_SHAPES)]
        else:
            self._inputs = [torch.ones(self.size(), WIDTH, device=device)] * HOT_REPEATS

    def ops(self) -> None:
        op, weight = self._op, self._weight
        for tensor in self._inputs:
            op(tensor, weight)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def _convolutions() -> nn.Module:
    """Make a convolutional network for images of 3 x 8 x 8."""
    first = (nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(WIDTH, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16, 4))


def _transformer() -> nn.Module:
    """Make a transformer layer for sequences of 6."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(6 * WIDTH, 4))


class Task(NamedTuple):
    """``shape``: of one example. ``foreach``: the optimizer updates all parameters in one op."""

    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    optimizer: Callable[..., torch.optim.Optimizer]
    foreach: bool


TASKS = {
    "training step": Task(_perceptron, (WIDTH,), partial(torch.optim.SGD, momentum=0.9), False),
    "training step of a CNN, AdamW": Task(_convolutions, (3, 8, 8), torch.optim.AdamW, False),
    "training step of a transformer block, AdamW with foreach": Task(
        _transformer, (6, WIDTH), torch.optim.AdamW, True
    ),
}


class TrainingStep(Block):
    """Forward, backward and the optimizer's step; cold when the batch size is new."""

    def __init__(self, contender: Contender, cold: bool, task: Task) -> None:
        super().__init__(contender, cold)
        self._task = task
        self._network = contender.module(task.network)
        self._optimizer = task.optimizer(self._network.parameters(), 1e-3, foreach=task.foreach)

    def prepare(self) -> None:
        size, device = self.size(), self.contender.device
        self._x = torch.ones(size, *self._task.shape, device=device)
        self._y = torch.zeros(size, dtype=torch.int64, device=device)

    def ops(self) -> None:
        self._optimizer.zero_grad()
        F.cross_entropy(self._network(self._x), self._y).backward()
        self._optimizer.step()


def recorded_ops(block: Block, recorder_of: Djinn) -> int:
    """How many ops the recorder takes for one block; the inputs' making is not counted."""
    with recorder_of.scope():
        block.prepare()
        recorder_of.settle()
        before = recorder_of.recorder.ops_recorded
        block.ops()
        recorded = recorder_of.recorder.ops_recorded - before
        recorder_of.settle()
    return recorded


def measure(bench: Bench) -> list[Figure]:
    djinn = Djinn()
    contenders: dict[str, Contender] = {
        OURS: djinn,
        "eager": Eager(),
        "torch._lazy": TorchLazy(),
        "FakeTensorMode": Fake(),
    }
    torch.set_num_threads(1)
    figures = []
    for cold, kind in itertools.product((False, True), (*KINDS, *TASKS)):
        taking_part = dict(contenders)
        if kind in list(TASKS)[1:]:
            taking_part = {name: contenders[name] for name in (OURS, "eager")}
        if kind == "pointwise" and not cold:
            taking_part[EMPTY_RECORDER] = TorchDispatch()
        blocks = {name: _block(kind, contender, cold) for name, contender in taking_part.items()}
        ops = recorded_ops(blocks[OURS], djinn)
        rounds = 15 if cold else 60
        taken = bench.alternate({name: block.sample for name, block in blocks.items()}, rounds)
        goals = COLD_GOALS if cold else STEP_GOALS if kind in TASKS else HOT_GOALS
        title = f"{kind}, {'cold' if cold else 'hot'}"
        walls = {name: Summary.of(block.walls_s).median * 1e6 / ops for name, block in blocks.items()}
        samples = scaled(taken, 1e6 / ops)
        facts = {"ops_per_sample": ops, "median_wall_us_per_op": walls}
        figures.append(figure(NAME, title, "us/op", samples, goals, **facts))
    return figures


def _block(kind: str, contender: Contender, cold: bool) -> Block:
    if kind in TASKS:
        return TrainingStep(contender, cold, TASKS[kind])
    return SingleOps(contender, cold, KINDS[kind])
