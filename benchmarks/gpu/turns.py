"""Two users whose values do not fit on the card together take turns."""

from __future__ import annotations

from time import perf_counter

import torch

from benchmarks.figures import OURS, Figure, figure
from benchmarks.gpu.bench import GIB, GpuBench, gpu_pool

NAME = "gpu-turns"


def measure(bench: GpuBench) -> list[Figure]:
    memory = bench.size(40 * GIB, 128 * 2**20)
    rows, turns = int(0.3 * memory) // 2**16, bench.size(6, 2)
    with gpu_pool(bench, memory, host_bytes=bench.size(48 * GIB, 256 * 2**20)) as pool:
        sessions = [pool.session(f"user-{number}") for number in range(2)]
        values: list[torch.Tensor | None] = [None, None]
        taken, wrong = list[float](), 0
        for turn in range(turns):
            for place, session in enumerate(sessions):
                began_s = perf_counter()
                with session.capture():
                    value = values[place]
                    value = torch.full((rows, 2**14), float(place)).cuda() if value is None else value
                    doubled = value * 2
                    made = values[place] = doubled - value + 1
                    mean = made.mean()
                wrong += session.fetch(mean).item() != place + turn + 1
                if turn:
                    taken.append(perf_counter() - began_s)
    moved = 2 * rows * 2**16
    return [
        figure(NAME, "a turn", "s", {OURS: taken}, wrong=wrong, bytes_each=rows * 2**16, bytes_moved=moved)
    ]
