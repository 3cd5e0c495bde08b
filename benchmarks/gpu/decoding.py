"""Seconds a token of a model of 7B parameters: an unchanged notebook on the pool, beside eager torch."""

from __future__ import annotations

import copy
from time import perf_counter
from typing import Any

import torch

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.gpu.bench import GpuBench, gpu_pool
from benchmarks.gpu.models import llama
from benchmarks.samples import alternate

NAME = "gpu-decode"
GOAL = Goal(0.5, baseline="eager")
PROMPT_TOKENS = 16


def measure(bench: GpuBench) -> list[Figure]:
    tokens = bench.size(64, 4)
    model = llama(bench)
    prompt = torch.randint(0, 500, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))
    eager_model = copy.deepcopy(model).to(bench.device)
    found: dict[str, torch.Tensor] = {}

    def generate(of: Any, given: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            made: torch.Tensor = of.generate(
                given, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
        return made

    with gpu_pool(bench) as pool:
        session = pool.session()

        def ours() -> float:
            began_s = perf_counter()
            with session.capture():
                found[OURS] = generate(model.cuda(), prompt.cuda())
            session.fetch(found[OURS])
            return (perf_counter() - began_s) / tokens

        def eager() -> float:
            began_s = perf_counter()
            found["eager"] = generate(eager_model, prompt.to(bench.device)).cpu()
            return (perf_counter() - began_s) / tokens

        taken = alternate({OURS: ours, "eager": eager}, bench.size(5, 1))
        alike = (session.fetch(found[OURS]) == found["eager"]).float().mean().item()
    name = "greedy, bfloat16"
    return [figure(NAME, name, "s/token", taken, [GOAL], tokens=tokens, equal_tokens=alike)]
