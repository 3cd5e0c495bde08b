"""Measure the cost of recording per op in whole programs: decoding with a growing cache, and a long cell."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, thread_time

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from benchmarks.bench import Bench
from benchmarks.capture_contenders import Contender, Djinn, Eager, Fake
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.samples import scaled

NAME = "capture-programs"
LAYERS, WIDTH, HEADS = 2, 32, 4
STEPS, QUICK_STEPS = 24, 4
FIRST_LENGTH = 16
LONG_CELL_OPS, QUICK_CELL_OPS = 100_000, 5_000
SEEN_GOAL = Goal(1.5, baseline="lengths seen before")
COLD_GOAL = Goal(60)


class Layer(nn.Module):
    """Self-attention over all earlier tokens, and a multilayer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        parts = self.query_key_value(self.norm(x)).split(WIDTH, dim=-1)
        query, key, value = (part.view(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).reshape(1, -1, WIDTH))
        return x + self.contract(F.gelu(self.expand(x))), key, value


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, length: int, steps: int) -> torch.Tensor:
        """Decode ``steps`` tokens after ``length`` others."""
        empty = torch.zeros(1, HEADS, length, WIDTH // HEADS)
        past = [(empty, empty) for _ in self.layers]
        for _ in range(steps):
            for index, layer in enumerate(self.layers):
                x, *kept = layer(x, past[index])
                past[index] = (kept[0], kept[1])
        return x


def measure(bench: Bench) -> list[Figure]:
    torch.set_num_threads(1)
    return [_decoding(bench), _long_cell(bench)]


def _decoding(bench: Bench) -> Figure:
    """Each round decodes at lengths new to every contender; ours does so again at the same lengths."""
    network = Decoder()
    djinn = Djinn()
    steps = QUICK_STEPS if bench.quick else STEPS
    lengths = iter(range(FIRST_LENGTH, 10**9, steps))
    length = [next(lengths)]
    ops = _recorded(djinn, Decoder(), length[0], steps)

    def seconds(contender: Contender) -> Callable[[], float]:
        own = contender.module(Decoder)

        def sample() -> float:
            with contender.scope(), torch.no_grad():
                x = torch.ones(1, 1, WIDTH)
                contender.settle()
                started = thread_time()
                own(x, length[0], steps)
                elapsed_s = thread_time() - started
                contender.settle()
            return elapsed_s

        return sample

    def traced() -> float:
        with torch.no_grad():
            started = thread_time()
            make_fx(lambda x: network(x, length[0], steps))(torch.ones(1, 1, WIDTH))
            return thread_time() - started

    ours = seconds(djinn)

    def unseen() -> float:
        length[0] = next(lengths)
        return ours()

    taken = bench.alternate({OURS: unseen, "lengths seen before": ours}, 25)
    others = {"eager": seconds(Eager()), "FakeTensorMode": seconds(Fake()), "make_fx": traced}
    taken |= bench.alternate(others, 25)
    title = "decoding, the cache grows at each step"
    return figure(NAME, title, "us/op", scaled(taken, 1e6 / ops), [COLD_GOAL, SEEN_GOAL], ops_per_sample=ops)


def _recorded(djinn: Djinn, network: nn.Module, length: int, steps: int) -> int:
    with djinn.scope(), torch.no_grad():
        x = torch.ones(1, 1, WIDTH)
        before = djinn.recorder.ops_recorded
        network(x, length, steps)
        count = djinn.recorder.ops_recorded - before
        djinn.settle()
    return count


def _long_cell(bench: Bench) -> Figure:
    """On the pool, results compared; per op, beside a tenth of it: the cost must not grow with the length."""
    session = bench.session
    count = QUICK_CELL_OPS if bench.quick else LONG_CELL_OPS
    results: dict[str, float] = {}

    def work(ops: int) -> torch.Tensor:
        x = torch.zeros(8)
        for _ in range(ops // 2):
            x = (x + 1) * 0.5
        return x

    def ours(ops: int) -> float:
        started = perf_counter()
        with session.capture() as cell:
            x = work(ops)
        elapsed_s = perf_counter() - started
        bench.audit(NAME, cell)
        results[OURS] = x.sum().item()
        return elapsed_s / ops

    def eager() -> float:
        started = perf_counter()
        results["eager"] = work(count).sum().item()
        return (perf_counter() - started) / count

    contenders = {OURS: lambda: ours(count), "a tenth as long": lambda: ours(count // 10), "eager": eager}
    taken = bench.alternate(contenders, 5)
    ours(count)
    eager()
    equal = results[OURS] == results["eager"]
    return figure(
        NAME,
        f"a cell of {count:,} ops, cell end included",
        "us/op",
        scaled(taken, 1e6),
        ops=count,
        equal=equal,
    )
