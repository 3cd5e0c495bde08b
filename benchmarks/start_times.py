"""Measure how long a pool takes until it is ready, and the command line until it answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.pool.launch import start_pool, stop_pool

NAME = "start"
POOL_GOAL = Goal(3)


def measure(bench: Bench) -> list[Figure]:
    bench.stop_pool()
    python = _process("-c", "pass")
    pool = bench.alternate(
        {OURS: _pool_ready, "python -c 'import torch'": _process("-c", "import torch"), "python": python},
        7,
    )
    version = bench.alternate({OURS: _process("-m", "djinn_lab.cli", "version"), "python": python}, 15)
    return [
        figure(NAME, "pool ready, from start_pool() on", "s", pool, [POOL_GOAL]),
        figure(NAME, "djinn-lab version", "s", version),
    ]


def _pool_ready() -> float:
    with own_runtime():
        started = perf_counter()
        try:
            start_pool(wait_s=START_TIMEOUT_S)
            return perf_counter() - started
        finally:
            stop_pool()


def _process(*arguments: str) -> Callable[[], float]:
    def sample() -> float:
        started = perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return perf_counter() - started

    return sample
