"""Short measurements of a device: what the cost model's roofline stands on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from djinn_lab.protocol.worker import DeviceMeasured
from djinn_lab.srg.program import (
    NodeRecord,
    Program,
    Scope,
    Source,
    Template,
    TensorHole,
    TensorMeta,
    encode_program,
)
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import StopSignal

CHAIN_OPS = 200


def measure(device: torch.device, budget_s: float = 0.5) -> DeviceMeasured:
    """Medians over about ``budget_s`` seconds: float32 matmul rate, copy rate (bytes read plus written),
    cost of an op besides its work (through the interpreter, as cells run)."""
    size = 512 if device.type == "cpu" else 4096
    left = torch.randn(size, size, device=device)
    right = torch.randn(size, size, device=device)
    big = torch.empty(2**26, dtype=torch.uint8, device=device)
    target = torch.empty_like(big)
    share = budget_s / 3
    matmul_s = _median_s(lambda: torch.mm(left, right), device, share)
    copy_s = _median_s(lambda: target.copy_(big), device, share)
    program = encode_program(_chain())
    interpreter = Interpreter(device, 2**20, Path())
    op_s = _median_s(lambda: _run(program, interpreter), device, share) / CHAIN_OPS
    return DeviceMeasured(2 * size**3 / matmul_s, 2 * big.nbytes / copy_s, op_s)


def _chain() -> Program:
    """Additions on one element, as any other program: what an op costs besides its own work."""
    metas = [TensorMeta("float32", (1,), (1,))]
    source = Source(1, 1, 0, "input", None, bytes(4))
    add = Template("aten.add.Tensor", [TensorHole(), 1], {})
    nodes = [
        NodeRecord(0, (value,), (value + 1,), (0,), (value + 1,), 0) for value in range(1, CHAIN_OPS + 1)
    ]
    return Program(metas, [add], [Scope("", 0, "calibration", 0, "other")], [source], nodes)


def _run(program: bytes, interpreter: Interpreter) -> None:
    """Run a program as one that is in the plan cache."""
    outcome = interpreter.run("calibration", program, {}, StopSignal(), lambda done, total: None, b"chain")
    assert outcome.failure is None, outcome.failure


def _median_s(run: Callable[[], object], device: torch.device, budget_s: float) -> float:
    run()
    samples: list[float] = []
    deadline = perf_counter() + budget_s
    while len(samples) < 5 or (perf_counter() < deadline and len(samples) < 1000):
        _wait(device)
        started = perf_counter()
        run()
        _wait(device)
        samples.append(perf_counter() - started)
    return median(samples)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
