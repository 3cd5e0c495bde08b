"""Cells that run often, compiled within a tolerance, beside the same cells op by op: two sessions of one pool
whose device has one thread."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, figure
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.native.compiler import find_compiler
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "compile"
EXACT = "op by op"
TOLERANCE = 1e-4
COMPILED_WITHIN_S = 900.0
PAUSE_S = 0.5
"""Between two cells while the compiler works, which has what others leave of the machine."""
ROUNDS = 40

Body = Callable[[], torch.Tensor]


def _elementwise() -> Body:
    """Twelve steps of a logistic map on a million numbers."""
    numbers = torch.rand(1_000_000)

    def body() -> torch.Tensor:
        found = numbers
        for _ in range(12):
            found = 3.7 * found * (1.0 - found)
        return found

    return body


def _perceptron() -> Body:
    """Inference of six residual blocks with normalisation and GELU."""
    blocks = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        for _ in range(6)
    )
    rows = torch.randn(64, 256)

    def body() -> torch.Tensor:
        with torch.no_grad():
            found = rows
            for block in blocks:
                found = found + block(found)
            return found

    return body


def _decode() -> Body:
    """One token of GPT-2 small behind 64 others: attention over keys and values that are there."""
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

    config = GPT2Config(bos_token_id=0, eos_token_id=0, vocab_size=5000)
    model: Any = GPT2LMHeadModel(config)
    model.eval()
    heads = (1, config.n_head, 64, config.n_embd // config.n_head)
    past = [(torch.randn(heads), torch.randn(heads)) for _ in range(config.n_layer)]
    token = torch.tensor([[7]])

    def body() -> torch.Tensor:
        with torch.no_grad():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # transformers' own about the argument's name
                logits: torch.Tensor = model(token, past_key_values=DynamicCache(past)).logits
            return logits

    return body


def _training() -> Body:
    """A step of Adam on three layers of 1.2 million weights."""
    network = nn.Sequential(
        *(nn.Linear(128, 1024), nn.GELU(), nn.LayerNorm(1024)),
        *(nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 10)),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    rows, wanted = torch.randn(32, 128), torch.randn(32, 10)

    def body() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse_loss(network(rows), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return body


PROGRAMS: dict[str, Callable[[], Body]] = {
    "elementwise": _elementwise,
    "perceptron": _perceptron,
    "training step": _training,
    "GPT-2 decode step": _decode,
}


class Contender:
    """One program in a session of its own; both begin with the same numbers."""

    def __init__(
        self, info: RuntimeInfo, stack: ExitStack, make: Callable[[], Body], tolerance: float
    ) -> None:
        self._session = stack.enter_context(closing(Session(info.url, info.token, default_profile(), NAME)))
        self._session.tolerance = tolerance
        torch.manual_seed(0)
        self._body = make()
        self.said = ""
        self.run_s = 0.0
        self.last = torch.empty(0)

    def cell(self) -> float:
        """Run a cell, and return the milliseconds until its result is here."""
        began_s = perf_counter()
        with self._session.capture(NAME) as cell:
            self.last = self._body()
        self.last = self._session.fetch(self.last)
        took_ms = (perf_counter() - began_s) * 1e3
        self.said, self.run_s = cell.report.compiled, cell.report.run_s
        return took_ms

    def settle(self) -> tuple[int, float]:
        """Run until it is compiled or dropped; return how many cells that took, and for how many seconds one
        was being compiled."""
        began_s = perf_counter()
        cells, compiling_s = 0, 0.0
        while not self.said.startswith("run op by op:") and " runs save" not in self.said:
            if perf_counter() - began_s > COMPILED_WITHIN_S:
                raise TimeoutError(self.said)
            self.cell()
            cells += 1
            if "being compiled" in self.said:
                time.sleep(PAUSE_S)
                compiling_s = perf_counter() - began_s
        return cells, compiling_s


def measure(bench: Bench) -> list[Figure]:
    if find_compiler() is None:
        return [Figure(NAME, "cells", "ms", skipped="this machine has no C++ compiler")]
    figures = []
    with own_runtime():
        try:
            info = start_pool(devices="cpu:1", threads=1, memory_bytes=4 * 2**30, wait_s=START_TIMEOUT_S)
            for name, make in list(PROGRAMS.items())[: bench.rounds(len(PROGRAMS), 1)]:
                with ExitStack() as stack:
                    figures.append(_figure(bench, info, stack, name, make))
        finally:
            stop_pool()
    return figures


def _figure(bench: Bench, info: RuntimeInfo, stack: ExitStack, name: str, make: Callable[[], Body]) -> Figure:
    ours, exact = Contender(info, stack, make, TOLERANCE), Contender(info, stack, make, 0.0)
    cells, compiling_s = (0, 0.0) if bench.quick else ours.settle()
    ours.cell()
    for _ in range(cells + 1):
        exact.cell()
    taken = bench.alternate({OURS: ours.cell, EXACT: exact.cell}, ROUNDS)
    saved_s = sum(theirs - own for own, theirs in zip(taken[OURS], taken[EXACT], strict=True)) / 1e3
    difference = ((ours.last - exact.last).abs() / (1 + exact.last.abs())).max().item()
    facts: dict[str, Any] = {
        "said": ours.said,
        "seconds_being_compiled": compiling_s,
        "runs_to_pay": compiling_s * len(taken[OURS]) / saved_s if saved_s > 0 else None,
        "largest_difference": difference,
    }
    return figure(NAME, f"a cell: {name}", "ms", taken, **facts)
