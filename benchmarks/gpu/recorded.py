"""Seconds a token of a small model whose steps the pool records as CUDA graphs, by the kind of its cache."""

from __future__ import annotations

import copy
from time import perf_counter
from typing import Any

import torch

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.gpu.bench import GpuBench, GpuPool, gpu_pool
from benchmarks.gpu.models import gpt2
from benchmarks.samples import alternate
from djinn_lab.protocol.compiling import CUDA_GRAPHS

NAME = "gpu-recorded"
GOAL = Goal(0.5, baseline="op by op")
TOLERANCE = 1e-3
PROMPT_TOKENS = 16
CACHES = {"a cache of fixed size": "static", "a cache that grows": "dynamic"}


def measure(bench: GpuBench) -> list[Figure]:
    with gpu_pool(bench, region_compiler=CUDA_GRAPHS) as pool:
        return [_decoded(bench, pool, name, kind) for name, kind in CACHES.items()]


def _decoded(bench: GpuBench, pool: GpuPool, name: str, kind: str) -> Figure:
    tokens, session = bench.size(64, 12), pool.session()
    model = gpt2(bench, 0.0).eval()
    eager_model = copy.deepcopy(model).to(bench.device)
    prompt = torch.randint(0, 500, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))
    found: dict[str, torch.Tensor] = {}
    said = ""

    def generate(of: Any, given: torch.Tensor) -> torch.Tensor:
        options = {"do_sample": False, "pad_token_id": 0, "disable_compile": True, "use_cache": True}
        lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        with torch.no_grad():
            made: torch.Tensor = of.generate(given, cache_implementation=kind, **options, **lengths)
        return made

    def pooled(contender: str, tolerance: float) -> float:
        nonlocal said
        began_s = perf_counter()
        with session.capture(tolerance=tolerance) as cell:
            found[contender] = generate(model.cuda(), prompt.cuda())
        session.fetch(found[contender])
        said = cell.report.compiled or said
        return (perf_counter() - began_s) / tokens

    def eager() -> float:
        began_s = perf_counter()
        found["eager"] = generate(eager_model, prompt.to(bench.device)).cpu()
        return (perf_counter() - began_s) / tokens

    for _ in range(bench.size(3, 1)):  # until its steps are recorded, checked and measured
        pooled(OURS, TOLERANCE)
    contenders = {
        OURS: lambda: pooled(OURS, TOLERANCE),
        "op by op": lambda: pooled("op by op", 0.0),
        "eager": eager,
    }
    taken = alternate(contenders, bench.size(7, 1))
    alike = (session.fetch(found[OURS]) == session.fetch(found["op by op"])).float().mean().item()
    facts = {"tokens": tokens, "equal_tokens": alike, "report": said}
    return figure(NAME, f"GPT-2, greedy, {name}", "s/token", taken, [GOAL], **facts)
