"""Short measurements of a device: what the cost model's roofline stands on."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from djinn_lab.worker.messages import DeviceMeasured


def measure(device: torch.device, budget_s: float = 0.5) -> DeviceMeasured:
    """Medians over about ``budget_s`` seconds: float32 matmul rate, copy rate (bytes read plus written),
    fixed cost per op."""
    size = 512 if device.type == "cpu" else 4096
    left = torch.randn(size, size, device=device)
    right = torch.randn(size, size, device=device)
    big = torch.empty(2**24, dtype=torch.uint8, device=device)
    target = torch.empty_like(big)
    small = torch.zeros(1, device=device)
    share = budget_s / 3
    matmul_s = _median_s(lambda: torch.mm(left, right), device, share)
    copy_s = _median_s(lambda: target.copy_(big), device, share)
    op_s = _median_s(lambda: small.add(1), device, share)
    return DeviceMeasured(2 * size**3 / matmul_s, 2 * big.nbytes / copy_s, op_s)


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
