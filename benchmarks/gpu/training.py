"""Seconds a step of training GPT-2 under autocast to bfloat16, on the pool and in eager torch."""

from __future__ import annotations

import copy
from time import perf_counter
from typing import Any

import torch

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.gpu.bench import GpuBench, gpu_pool
from benchmarks.gpu.models import gpt2
from benchmarks.samples import alternate

NAME = "gpu-training"
GOAL = Goal(1.02, baseline="eager")


def measure(bench: GpuBench) -> list[Figure]:
    return [_train(bench, dropout) for dropout in (0.0, 0.1)]


def _train(bench: GpuBench, dropout: float) -> Figure:
    steps = bench.size(10, 2)
    shape = (bench.size(8, 2), bench.size(1024, 32))
    tokens = torch.randint(0, 500, shape, generator=torch.Generator().manual_seed(1))
    model = gpt2(bench, dropout)
    eager_model = copy.deepcopy(model).to(bench.device)
    eager_tokens, eager_kind = tokens.to(bench.device), bench.device.type
    optimizer = torch.optim.AdamW(eager_model.parameters(), lr=1e-4)
    losses: dict[str, float] = {}

    def run(of: Any, steps_of: Any, given: torch.Tensor, kind: str) -> torch.Tensor:
        for _ in range(steps):
            with torch.autocast(kind, torch.bfloat16):
                loss: torch.Tensor = of(input_ids=given, labels=given).loss
            steps_of.zero_grad()
            loss.backward()
            steps_of.step()
        return loss.detach()

    with gpu_pool(bench) as pool:
        session = pool.session()
        with session.capture():
            on_pool, given = model.cuda(), tokens.cuda()
            own = torch.optim.AdamW(on_pool.parameters(), lr=1e-4)

        def ours() -> float:
            began_s = perf_counter()
            with session.capture():
                loss = run(on_pool, own, given, "cuda")
            losses[OURS] = session.fetch(loss).item()
            return (perf_counter() - began_s) / steps

        def eager() -> float:
            began_s = perf_counter()
            losses["eager"] = run(eager_model, optimizer, eager_tokens, eager_kind).item()
            return (perf_counter() - began_s) / steps

        taken = alternate({OURS: ours, "eager": eager}, bench.size(7, 1))
    name = f"GPT-2, autocast to bfloat16, dropout {dropout:g}"
    return figure(NAME, name, "s/step", taken, [GOAL], steps=steps, tokens=tokens.numel(), losses=losses)
