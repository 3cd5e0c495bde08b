"""Tokens a second of ``generate`` on the pool beside eager torch: the same model, device and threads."""

from __future__ import annotations

import copy
import warnings
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.stage_audit import median_stages
from djinn_lab.client.report import CellReport

NAME = "generation"
GOAL = {
    "GPT-2 of 124 M parameters": Goal(1 / 0.95, baseline="eager"),
    "GPT-2 with layers of 64": Goal(1 / 0.7, baseline="eager"),
}
"""Seconds per token: 0.95 and 0.7 times eager's tokens a second."""
TOKENS, QUICK_TOKENS = 32, 4
PROMPT_TOKENS = 16
GPT2 = {
    "GPT-2 of 124 M parameters": {},
    "GPT-2 with layers of 64": {"n_embd": 64, "n_head": 4, "vocab_size": 500},
}


def measure(bench: Bench) -> list[Figure]:
    chosen = list(GPT2.items())[-1 if bench.quick else 0 :]
    return [_generate(bench, name, settings) for name, settings in chosen]


def _generate(bench: Bench, name: str, settings: dict[str, Any]) -> Figure:
    session = bench.session
    plain = _model(settings)
    on_pool = copy.deepcopy(plain)
    tokens = QUICK_TOKENS if bench.quick else TOKENS
    prompt = torch.randint(0, 500, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))
    results: dict[str, torch.Tensor] = {}
    reports: list[CellReport] = []

    def generate(model: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model.generate(
                prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
            )
        return found

    def ours() -> float:
        started = perf_counter()
        with session.capture() as cell:
            results[OURS] = generate(on_pool)
        elapsed_s = perf_counter() - started
        bench.audit(NAME, cell)
        reports.append(cell.report)
        return elapsed_s / tokens

    def eager() -> float:
        started = perf_counter()
        results["eager"] = generate(plain)
        return (perf_counter() - started) / tokens

    taken = bench.alternate({OURS: ours, "eager": eager}, 9)
    facts = {
        "tokens": tokens,
        "ops_per_token": reports[-1].ops_run / tokens,
        "threads": bench.threads,
        "equal": torch.equal(session.fetch(results[OURS]), results["eager"]),
        "median_stages_s": median_stages(reports),
    }
    return figure(NAME, f"{name}, greedy", "s/token", taken, [GOAL[name]], **facts)


def _model(settings: dict[str, Any]) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = GPT2Config(bos_token_id=0, eos_token_id=0, **settings)
        model: Any = GPT2LMHeadModel(config)
        return model.eval()
