"""Measure how long a cell of one op takes from submit to result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

import httpx
import torch

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.samples import scaled

NAME = "round-trip"
PING = "WebSocket ping"
GOALS = [Goal(10), Goal(1.5, baseline=PING)]


def measure(bench: Bench) -> list[Figure]:
    rounds = 400
    session = bench.session
    host = torch.ones(64, 64)
    with session.capture():
        lazy = host + 0
    with httpx.Client(base_url=session.url, trust_env=False) as http:

        def alive() -> None:
            assert http.get("/v1/alive").status_code == 200

        def one_op() -> None:
            with session.capture() as cell:
                kept.append(lazy + 1)
            bench.audit(NAME, cell)

        def one_op_read() -> None:
            with session.capture() as cell:
                total = float((lazy + 1).sum())
            assert total == 2 * host.numel()
            bench.audit(NAME, cell)

        kept: deque[torch.Tensor] = deque(maxlen=1)  # as `y = x + 1` keeps one
        baselines = {
            PING: _timed(session.executor.connection.ping),
            "GET /v1/alive": _timed(alive),
            "eager": _timed(lambda: kept.append(host + 1)),
        }
        plain = bench.alternate({OURS: _timed(one_op), **baselines}, rounds)
        read = bench.alternate({OURS: _timed(one_op_read), **baselines}, rounds)
    return [
        figure(NAME, "cell of one op", "ms", scaled(plain, 1e3), GOALS),
        figure(NAME, "cell of two ops whose result is read in it", "ms", scaled(read, 1e3)),
    ]


def _timed(action: Callable[[], None]) -> Callable[[], float]:
    def sample() -> float:
        started = perf_counter()
        action()
        return perf_counter() - started

    return sample
