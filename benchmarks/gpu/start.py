"""How long a pool takes to start, and what each further user takes of the card."""

from __future__ import annotations

from time import perf_counter

import torch

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.gpu.bench import GpuBench, gpu_pool

NAME = "gpu-start"
GROUP_GOAL = Goal(700, "maximum")
"""MiB: a context is 450 to 600."""


def measure(bench: GpuBench) -> list[Figure]:
    began_s = perf_counter()
    with gpu_pool(bench) as pool:
        ready_s = perf_counter() - began_s
        taken: list[float] = []
        first_s: list[float] = []
        for number in range(bench.size(4, 2)):
            before = bench.free_bytes
            session = pool.session(f"user-{number}")
            began_s = perf_counter()
            with session.capture():
                value = torch.ones(8).cuda() + 1
            session.fetch(value)
            first_s.append(perf_counter() - began_s)
            taken.append((before - bench.free_bytes) / 2**20)
    return [
        figure(NAME, "pool start", "s", {OURS: [ready_s]}),
        figure(NAME, "a further user's process on the card", "MiB", {OURS: taken}, [GROUP_GOAL]),
        figure(NAME, "a further user's first cell", "s", {OURS: first_s}),
    ]
