"""What the machine can do: copies, launches, a product. Baselines of every part of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import torch

from benchmarks.figures import Figure
from benchmarks.gpu.bench import GpuBench
from benchmarks.samples import Summary

NAME = "ceilings"


def measure(bench: GpuBench) -> list[Figure]:
    return [_copies(bench), _launches(bench), _product(bench)]


def _plain(name: str, unit: str, taken: Mapping[str, Sequence[float]], **facts: object) -> Figure:
    series = {contender: Summary.of(samples) for contender, samples in taken.items()}
    return Figure(NAME, name, unit, series, facts=facts)


def _copies(bench: GpuBench) -> Figure:
    nbytes = bench.size(256, 4) * 2**20
    on_device = torch.empty(nbytes, dtype=torch.uint8, device=bench.device)
    other = torch.empty_like(on_device)
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    pageable = torch.empty(nbytes, dtype=torch.uint8)
    ways = {
        "pinned to device": lambda: on_device.copy_(pinned, non_blocking=True),
        "device to pinned": lambda: pinned.copy_(on_device, non_blocking=True),
        "pageable to device": lambda: on_device.copy_(pageable),
        "device to pageable": lambda: pageable.copy_(on_device),
        "within the device": lambda: other.copy_(on_device),
    }
    rounds = bench.size(9, 3)
    taken = {
        name: [nbytes / bench.timed(way) / 1e9 for _ in range(rounds + 1)][1:] for name, way in ways.items()
    }
    return _plain("copies", "GB/s", taken, nbytes=nbytes)


def _launches(bench: GpuBench) -> Figure:
    """Of an add that computes nothing worth the name."""
    count, value = bench.size(10_000, 300), torch.zeros(8, device=bench.device)

    def launched() -> float:
        bench.sync()
        began_s = perf_counter()
        for _ in range(count):
            value.add_(1)
        asked_s = perf_counter() - began_s
        bench.sync()
        return asked_s / count * 1e6

    def waited() -> float:
        began_s = perf_counter()
        for _ in range(count):
            value.add_(1)
            bench.sync()
        return (perf_counter() - began_s) / count * 1e6

    ways = {"launched": launched, "each waited for": waited}
    return _plain(
        "one op", "us", {name: [way() for _ in range(4)][1:] for name, way in ways.items()}, ops=count
    )


def _product(bench: GpuBench) -> Figure:
    side = bench.size(8192, 128)
    a = torch.randn(side, side, device=bench.device).to(torch.bfloat16)
    b = torch.randn(side, side, device=bench.device).to(torch.bfloat16)
    rounds = bench.size(20, 3)
    flops = [2 * side**3 / bench.timed(lambda: a @ b) / 1e12 for _ in range(rounds + 1)][1:]
    return _plain("product in bfloat16", "TFLOP/s", {"torch": flops}, side=side)
