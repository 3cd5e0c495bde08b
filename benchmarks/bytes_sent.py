"""Measure how many bytes a workload sends when it is run again, beside its first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure

NAME = "bytes"
GOAL = Goal(0.01, baseline="the first time")
WARM_UP = 4
"""Runs that are not counted: what an optimizer makes at its first step is another graph, and what grows needs
to be seen growing."""
STEPS, QUICK_STEPS = 200, 20


class Training:
    """``step()`` trains a small perceptron once."""

    def __init__(self, kind: Callable[..., torch.optim.Optimizer]) -> None:
        generator = torch.Generator().manual_seed(0)
        self._network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 10))
        self._optimizer = kind(self._network.parameters(), lr=0.01)
        self._inputs = torch.randn(64, 64, generator=generator)
        self._labels = torch.randint(0, 10, (64,), generator=generator)
        self._loss: torch.Tensor | None = None

    @property
    def batch_bytes(self) -> int:
        return self._inputs.nbytes

    def new_batch(self) -> None:
        self._inputs = torch.randn(64, 64)

    def step(self) -> None:
        self._optimizer.zero_grad()
        loss = F.cross_entropy(self._network(self._inputs), self._labels)
        loss.backward()
        self._optimizer.step()
        self._loss = loss.detach()


class Decoding:
    """``step()`` makes one more token with a cache that grows."""

    def __init__(self) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_layer=4, n_embd=64, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0, pad_token_id=0
        )
        self._model: Any = GPT2LMHeadModel(config)
        self._model.train(False)
        self._token = torch.tensor([[1]])
        self._cache: Any = None

    def step(self) -> None:
        with torch.no_grad():
            output = self._model(self._token, cache=self._cache, use_cache=True)
        self._token, self._cache = output.logits[:, -1:].argmax(-1), output.cache


def measure(bench: Bench) -> list[Figure]:
    new_batches = Training(torch.optim.SGD)
    long = Training(torch.optim.SGD)
    steps = QUICK_STEPS if bench.quick else STEPS

    def many() -> None:
        for _ in range(steps):
            long.step()

    return [
        _again(bench, "a training cell, SGD", Training(torch.optim.SGD).step),
        _again(bench, "a training cell, AdamW", Training(torch.optim.AdamW).step),
        _again(
            bench,
            "a training cell, beside its new batch",
            new_batches.step,
            new_batches.new_batch,
            new_batches.batch_bytes,
        ),
        _again(bench, "a decoding step, growing cache", Decoding().step),
        _again(bench, f"a cell of {steps} training steps", many),
    ]


def _again(
    bench: Bench,
    name: str,
    action: Callable[[], None],
    before: Callable[[], None] = lambda: None,
    new_bytes: int = 0,
) -> Figure:
    """``before`` brings ``new_bytes`` of input."""
    sent, graphs = [], []
    rounds = bench.rounds(20, 2)
    for _ in range(1 + WARM_UP + rounds):
        before()
        with bench.session.capture("again", code="step()") as cell:
            action()
        bench.audit(NAME, cell)
        sent.append(float(cell.report.bytes_up - new_bytes))
        graphs.append(float(cell.report.graph_bytes))
    again, whole, first = sent[1 + WARM_UP :], graphs[1 + WARM_UP :], sent[0]
    facts = {"ops": cell.report.ops_run, "segments": len(cell.report.cuts), "second_time": sent[1]}
    taken = {OURS: again, "the first time": [first] * rounds, "whole graphs": whole}
    return figure(NAME, name, "B", taken, [GOAL], **facts)
