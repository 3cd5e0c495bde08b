"""How soon an urgent cell runs beside a long one, and how soon a session works again after a fault."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, sleep

import torch

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.gpu.bench import GpuBench, GpuPool, gpu_pool

NAME = "gpu-stopping"
GOAL = Goal(0.05, "p99")


def measure(bench: GpuBench) -> list[Figure]:
    with gpu_pool(bench) as pool:
        return [_preempted(bench, pool), _faulted(bench, pool)]


def _preempted(bench: GpuBench, pool: GpuPool) -> Figure:
    """Of tiny urgent cells while another session multiplies large matrices; alone first."""
    long_cell, urgent = pool.session(), pool.session()
    side, products, cells = bench.size(8192, 256), bench.size(4000, 3000), bench.size(100, 3)
    with urgent.capture():
        small = torch.ones(8).cuda()
    with long_cell.capture():
        matrix = torch.eye(side).to(torch.bfloat16).cuda()

    def tiny() -> float:
        began_s = perf_counter()
        with urgent.capture(priority="CRITICAL"):
            made = small + 1
        urgent.fetch(made)
        return perf_counter() - began_s

    def long() -> None:
        with long_cell.capture(priority="LOW"):
            made = matrix
            for _ in range(products):
                made = made @ matrix
        long_cell.fetch(made[0, 0])

    alone = [tiny() for _ in range(cells)]
    beside = list[float]()
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(long)
        sleep(0.5)
        while len(beside) < cells and not running.done():
            beside.append(tiny())
            sleep(0.01)
        running.result()
    count = max(1, len(beside))
    taken = {OURS: beside or alone[:1], "alone": alone[:count] if beside else alone[:1]}
    return figure(NAME, "an urgent cell beside products", "s", taken, [GOAL], beside=len(beside), side=side)


def _faulted(bench: GpuBench, pool: GpuPool) -> Figure:
    """From an index out of range to the next cell's answer, with the session's values."""
    session = pool.session()
    taken, named = list[float](), 0
    with session.capture():
        kept, table = torch.arange(9.0).cuda(), torch.randn(9, 4).cuda()
    for _ in range(bench.size(5, 1)):
        began_s = perf_counter()
        try:
            with session.capture():
                rows = torch.nn.functional.embedding(torch.tensor([3, 400]).cuda(), table)
                made = rows.sum()
            session.fetch(made)
        except torch.AcceleratorError as error:
            named += "aten.embedding" in str(error)
        with session.capture():
            total = kept.sum()
        assert session.fetch(total).item() == 36.0
        taken.append(perf_counter() - began_s)
    return figure(NAME, "a fault, until the next cell's answer", "s", {OURS: taken}, named=named)
