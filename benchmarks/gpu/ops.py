"""Microseconds an op: the executor alone and whole cells, beside eager torch with and without waits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.gpu.bench import GpuBench, gpu_pool
from benchmarks.gpu.chains import Chain, chains
from benchmarks.samples import Samples, alternate, scaled
from djinn_lab.srg.program import encode_program
from djinn_lab.worker.accelerator.link import AcceleratorLink
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import StopSignal

NAME = "gpu-ops"
GOAL = Goal(1.2, baseline="eager")
MEMORY_BYTES = 2**28


def measure(bench: GpuBench) -> list[Figure]:
    count = bench.size(10_000, 200)
    figures = [_executor(bench, chain, count) for chain in chains(count)]
    with gpu_pool(bench) as pool:
        session = pool.session()
        for chain in chains(count):

            def ours(chain: Chain = chain) -> float:
                with session.capture():
                    started = torch.zeros(8).cuda()
                session.fetch(started)
                began_s = perf_counter()
                with session.capture():
                    made = chain.eager(started)
                session.fetch(made)
                return perf_counter() - began_s

            taken = _beside_eager(bench, chain, ours, bench.size(9, 2))
            figures.append(
                figure(NAME, f"cell, {chain.name}", "us/op", scaled(taken, 1e6 / count), ops=count)
            )
    return figures


def _executor(bench: GpuBench, chain: Chain, count: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="djinn-bench-") as directory:
        link = AcceleratorLink(bench.device)
        interpreter = Interpreter(bench.device, MEMORY_BYTES, Path(directory), link=link)
        encoded, key = encode_program(chain.program), chain.name.encode()

        def ours() -> float:
            outcome = interpreter.run("bench", encoded, {}, StopSignal(), lambda done, total: None, key)
            assert outcome.failure is None, outcome.failure
            return outcome.run_s

        taken = _beside_eager(bench, chain, ours, bench.size(15, 3))
        interpreter.close("bench")
    return figure(NAME, f"executor, {chain.name}", "us/op", scaled(taken, 1e6 / count), [GOAL], ops=count)


def _beside_eager(bench: GpuBench, chain: Chain, ours: Callable[[], float], rounds: int) -> Samples:
    value = torch.zeros(8, device=bench.device)

    def waiting() -> float:
        began_s = perf_counter()
        for _ in chain.steps(value):
            bench.sync()
        return perf_counter() - began_s

    contenders = {
        OURS: ours,
        "eager": lambda: bench.timed(lambda: chain.eager(value)),
        "eager, each op waited for": waiting,
    }
    return alternate(contenders, rounds)
