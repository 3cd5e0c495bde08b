"""Functions that torch takes apart for a CPU and has in one kernel for a GPU, beside eager torch."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.gpu.bench import GpuBench, GpuPool, gpu_pool
from benchmarks.samples import alternate

NAME = "gpu-forms"
GOAL = Goal(1.1, baseline="eager")
Run = Callable[[], torch.Tensor]


def measure(bench: GpuBench) -> list[Figure]:
    with gpu_pool(bench) as pool:
        return [_form(bench, pool, name, make) for name, make in FORMS.items()]


def _form(bench: GpuBench, pool: GpuPool, name: str, make: Callable[[GpuBench, object], Run]) -> Figure:
    session, times = pool.session(), bench.size(20, 2)
    eager = make(bench, bench.device)
    with session.capture():
        own = make(bench, "cuda")

    def ours() -> float:
        began_s = perf_counter()
        with session.capture() as cell:
            for _ in range(times):
                made = own()
        session.fetch(made)
        ops.append(cell.report.ops_run / times)
        return (perf_counter() - began_s) / times

    def plain() -> float:
        return bench.timed(lambda: [eager() for _ in range(times)]) / times

    ops: list[float] = []
    taken = alternate({OURS: ours, "eager": plain}, bench.size(9, 1))
    return figure(NAME, name, "s", taken, [GOAL], ops=ops[-1], times=times)


def _adamw(bench: GpuBench, device: object) -> Run:
    parameters = [nn.Parameter(torch.ones(256, 256, device=device)) for _ in range(bench.size(148, 20))]  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(parameters)

    def run() -> torch.Tensor:
        for parameter in parameters:
            parameter.grad = parameter.detach()
        optimizer.step()
        found: torch.Tensor = parameters[0].detach()[0, 0]
        return found

    return run


def _dropout(bench: GpuBench, device: object) -> Run:
    given = torch.ones(bench.size(4096, 32), 1024, device=device, requires_grad=True)  # type: ignore[call-overload]

    def run() -> torch.Tensor:
        given.grad = None
        nn.functional.dropout(given, 0.1).sum().backward()
        assert given.grad is not None
        found: torch.Tensor = given.grad[0, 0]
        return found

    return run


def _gru(bench: GpuBench, device: object) -> Run:
    width, steps = bench.size(512, 16), bench.size(128, 8)
    layer = nn.GRU(width, width).to(device)  # type: ignore[call-overload]
    given = torch.ones(steps, 32, width, device=device)  # type: ignore[call-overload]

    def run() -> torch.Tensor:
        layer.zero_grad()
        made, _ = layer(given)
        made.sum().backward()
        found: torch.Tensor = made.detach()[0, 0, 0]
        return found

    return run


FORMS: dict[str, Callable[[GpuBench, object], Run]] = {
    "AdamW of many tensors": _adamw,
    "dropout, forward and backward": _dropout,
    "GRU, forward and backward": _gru,
}
