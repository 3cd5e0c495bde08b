"""Measure how much longer than eager torch a cell of about a second takes on the pool, once warm.

Both sides run on the same kind of device with the same number of threads, and their results are compared
bit by bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.stage_audit import median_stages
from benchmarks.workloads import BATCH, docstrings, load_sentence_model, tokenize
from djinn_lab.client.report import CellReport

NAME = "long-cell"
GOAL = Goal(1.05, baseline="eager")
CELL_S = 1.0
QUICK_CELL_S = 0.1
QUICK_BATCH = 4
LAYERS = 6

Work = Callable[[Any, int], torch.Tensor]
"""(model, steps) -> a tensor to compare."""


def measure(bench: Bench) -> list[Figure]:
    assert bench.session is not None
    torch.manual_seed(0)
    tokenizer, bert = load_sentence_model()
    return [
        _compare(bench, "training steps, layers of 1024 x 1024, batches of 256", *_training(1024, 256)),
        _compare(bench, "training steps, layers of 512 x 512, batches of 64", *_training(512, 64)),
        _compare(
            bench, "forward passes of a BERT of 22 M parameters", bert, _forward(tokenizer, bench.quick)
        ),
    ]


def _training(width: int, examples: int) -> tuple[nn.Module, Work]:
    """A multilayer perceptron and AdamW."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.GELU())]
    x, y = torch.randn(examples, width), torch.randn(examples, width)

    def work(network: nn.Module, steps: int) -> torch.Tensor:
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.mse_loss(network(x), y)
            loss.backward()
            optimizer.step()
        return loss.detach()

    return nn.Sequential(*layers), work


def _forward(tokenizer: Any, quick: bool) -> Work:
    tokens = tokenize(tokenizer, list(docstrings())[: QUICK_BATCH if quick else BATCH])

    def work(model: Any, steps: int) -> torch.Tensor:
        with torch.no_grad():
            hidden = [model(**tokens).last_hidden_state.mean(1) for _ in range(steps)]
        return torch.cat(hidden)

    return work


def _compare(bench: Bench, name: str, model: nn.Module, work: Work) -> Figure:
    """``model`` is copied, so both sides begin with the same weights and take the same steps."""
    pool_model, session = copy.deepcopy(model), bench.session
    results: dict[str, torch.Tensor] = {}
    reports: list[CellReport] = []
    steps = _steps(copy.deepcopy(model), work, QUICK_CELL_S if bench.quick else CELL_S)

    def ours() -> float:
        started = perf_counter()
        with session.capture() as cell:
            results[OURS] = work(pool_model, steps)
        elapsed_s = perf_counter() - started
        bench.audit(NAME, cell)
        reports.append(cell.report)
        return elapsed_s

    def eager() -> float:
        started = perf_counter()
        results["eager"] = work(model, steps)
        return perf_counter() - started

    taken = bench.alternate({OURS: ours, "eager": eager}, 11)
    facts = {
        "steps": steps,
        "ops": reports[-1].ops_run,
        "threads": bench.threads,
        "equal": torch.equal(session.fetch(results[OURS]), results["eager"]),
        "median_stages_s": median_stages(reports),
    }
    return figure(NAME, name, "s", taken, [GOAL], **facts)


def _steps(model: nn.Module, work: Work, wanted_s: float) -> int:
    """How many make a cell of about ``wanted_s`` in eager torch here."""
    work(model, 1)
    started = perf_counter()
    work(model, 3)
    return max(1, round(wanted_s / ((perf_counter() - started) / 3)))
