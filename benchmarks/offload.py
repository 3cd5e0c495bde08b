"""A model of twice the device's memory, beside the same model on a device that has memory for all of it:
cells of inference and of training, on two live pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import nn

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, figure
from djinn_lab.client.report import CellReport
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "offload"
ROOMY = "a device with memory for all"
MIB = 2**20
DEVICE_BYTES = 64 * MIB
WIDTH, LAYERS = 1024, 32
ROWS = 256


class Model:
    """128 MiB of weights, as much in gradients and as much in momenta once it trains."""

    def __init__(self, session: Session) -> None:
        torch.manual_seed(0)
        self._session = session
        parts = (part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
        self._network = nn.Sequential(*parts)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.1, momentum=0.9)
        self._rows = torch.randn(ROWS, WIDTH)
        self.report: CellReport | None = None
        self.answers: list[float] = []

    def infer(self) -> float:
        """A cell, in ms."""

        def body() -> torch.Tensor:
            with torch.no_grad():
                total: torch.Tensor = self._network(self._rows).abs().sum()
                return total

        return self._cell(body)

    def train(self) -> float:
        def body() -> torch.Tensor:
            self._optimizer.zero_grad()
            loss = self._network(self._rows).square().mean()
            loss.backward()
            self._optimizer.step()
            detached: torch.Tensor = loss.detach()
            return detached

        return self._cell(body)

    def _cell(self, body: Callable[[], torch.Tensor]) -> float:
        began_s = perf_counter()
        with self._session.capture("offload") as cell:
            answer = body()
        took_ms = (perf_counter() - began_s) * 1e3
        self.report = cell.report
        self.answers.append(answer.item())
        return took_ms


@contextmanager
def _pool(memory_bytes: int) -> Iterator[RuntimeInfo]:
    with own_runtime():
        try:
            yield start_pool(
                devices="cpu:1",
                threads=1,
                memory_bytes=memory_bytes,
                host_bytes=16 * DEVICE_BYTES,
                wait_s=START_TIMEOUT_S,
            )
        finally:
            stop_pool()


def measure(bench: Bench) -> list[Figure]:
    with ExitStack() as stack:
        models = {}
        for name, memory_bytes in ((OURS, DEVICE_BYTES), (ROOMY, 16 * DEVICE_BYTES)):
            info = stack.enter_context(_pool(memory_bytes))
            session = Session(info.url, info.token, default_profile(), name)
            models[name] = Model(stack.enter_context(closing(session)))
        return [
            _figure(bench, models, "inference", {name: model.infer for name, model in models.items()}),
            _figure(bench, models, "training", {name: model.train for name, model in models.items()}),
        ]


def _figure(
    bench: Bench, models: dict[str, Model], what: str, contenders: dict[str, Callable[[], float]]
) -> Figure:
    taken = bench.alternate(contenders, 15)
    report = models[OURS].report
    assert report is not None
    facts: dict[str, Any] = {
        "equal": models[OURS].answers == models[ROOMY].answers,
        "device_mib": DEVICE_BYTES / MIB,
        "weights_mib": LAYERS * WIDTH * (WIDTH + 1) * 4 / MIB,
        "to_host_mib": report.out_bytes / MIB,
        "back_mib": report.in_bytes / MIB,
        "ahead_mib": report.ahead_bytes / MIB,
    }
    return figure(NAME, f"a cell of {what}, weights of twice the device", "ms", taken, **facts)
