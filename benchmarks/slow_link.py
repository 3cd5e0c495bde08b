"""Measure cells of a client whose pool is a slow link away, beside what the link alone takes.

The link is a proxy on loopback (:mod:`benchmarks.far_link`), in a process of its own, 25 ms each way and
50 Mbit/s; client and pool speak TLS over it. *The ideal* is plain torch, measured in the same round, and the
round trips and bytes that cannot be saved: a round trip for each value that is read, and each byte once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import djinn_lab
from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.far_link import far_process
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.client import connection
from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.certificates import fingerprint
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "slow-link"
IDEAL = "the ideal"
DELAY_S = 0.025
RATE = 50e6 / 8
ROUND_TRIP_S = 2 * DELAY_S
STEPS, QUICK_STEPS = 100, 3
MEGABYTE = 10**6
UPLOAD_MB, QUICK_UPLOAD_MB = 20, 5
MANY, QUICK_MANY = 300, 30
MANY_KB = (40, 100)
"""The former travel in the program, the latter beside it."""
GOAL = Goal(1.25, baseline=IDEAL)


def measure(bench: Bench) -> list[Figure]:
    bench.stop_pool()
    steps = QUICK_STEPS if bench.quick else STEPS
    size_mb = QUICK_UPLOAD_MB if bench.quick else UPLOAD_MB
    with _far_pool() as info:
        torch.set_num_threads(1)
        with far_process(info.url, DELAY_S, RATE) as url, _session(url, info) as session:
            return [
                _training(bench, session, steps, f"{steps} steps, each with item()", steps),
                _training(bench, session, steps, f"{steps} steps, the loss read at the end", 1),
                _upload(bench, session, size_mb),
                _fetch(bench, session, size_mb),
                *(_many_up(bench, session, kilobytes) for kilobytes in MANY_KB),
                _many_down(bench, session, MANY_KB[-1]),
            ]


@contextmanager
def _far_pool() -> Iterator[RuntimeInfo]:
    """Start a pool with TLS, to whose clients its host is another one: tensors take the link, too."""
    with own_runtime(), patch.object(connection, "host_id", lambda: "another host"):
        try:
            yield start_pool(devices="cpu:1", threads=1, tls=True, restart=False, wait_s=START_TIMEOUT_S)
        finally:
            stop_pool()


@contextmanager
def _session(url: str, info: RuntimeInfo) -> Iterator[Session]:
    session = djinn_lab.connect(
        url, token=info.token, name="benchmark", certificate=fingerprint(info.certificate)
    )
    try:
        yield session
    finally:
        session.close()


def _link_s(round_trips: int, nbytes: int) -> float:
    """Return what the link takes for turns and bytes that wait for each other."""
    return round_trips * ROUND_TRIP_S + nbytes / RATE


class _Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self._network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01)
        self._inputs = torch.randn(32, 64)

    def run(self, steps: int, each: bool) -> float:
        loss = self._inputs
        for _ in range(steps):
            loss = self._network(self._inputs).square().mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            if each:
                loss.item()
        return loss.item()


def _training(bench: Bench, session: Session, steps: int, name: str, reads: int) -> Figure:
    far, near = _Training(), _Training()
    cells: list[Cell] = []

    def ours() -> float:
        started = perf_counter()
        with session.capture() as cell:
            far.run(steps, reads > 1)
        bench.audit(NAME, cell)
        cells.append(cell)
        return perf_counter() - started

    def ideal() -> float:
        started = perf_counter()
        near.run(steps, reads > 1)
        return perf_counter() - started + _link_s(reads, 0)

    taken = bench.alternate({OURS: ours, IDEAL: ideal}, 7)
    return figure(NAME, name, "s", taken, [GOAL], **_turns(cells[-1], reads))


def _turns(cell: Cell, ideal: int) -> dict[str, Any]:
    report = cell.report
    return {"turns": len(report.cuts), "ideal_turns": ideal, "bytes_up": report.bytes_up, **LINK}


LINK = {"delay_s": DELAY_S, "bytes_per_s": RATE}


def _upload(bench: Bench, session: Session, size_mb: int) -> Figure:
    """A cell that reads one value of a tensor that the pool has not seen."""
    tensor, marks = torch.empty(size_mb * MEGABYTE // 4), itertools.count()
    cells: list[Cell] = []
    with session.capture():
        first = torch.zeros(1, dtype=torch.int64)

    def ours() -> float:
        torch.manual_seed(next(marks))
        tensor.random_()
        started = perf_counter()
        with session.capture() as cell:
            torch.index_select(tensor, 0, first).item()
        cells.append(cell)
        return perf_counter() - started

    taken = bench.alternate({OURS: ours, IDEAL: lambda: _link_s(1, tensor.nbytes)}, 5)
    return figure(NAME, f"upload of {size_mb} MB, and one value", "s", taken, [GOAL], **_turns(cells[-1], 1))


def _fetch(bench: Bench, session: Session, size_mb: int) -> Figure:
    marks = itertools.count(1)

    def ours() -> float:
        mark = float(next(marks))
        with session.capture():
            lazy = torch.full((size_mb * MEGABYTE // 4,), mark)
        started = perf_counter()
        plain = session.fetch(lazy)
        taken_s = perf_counter() - started
        assert float(plain[-1]) == mark
        return taken_s

    taken = bench.alternate({OURS: ours, IDEAL: lambda: _link_s(1, size_mb * MEGABYTE)}, 5)
    return figure(NAME, f"fetch of {size_mb} MB", "s", taken, [GOAL], **LINK)


def _many_up(bench: Bench, session: Session, kilobytes: int) -> Figure:
    """A cell that reads one value of many small tensors that the pool has not seen."""
    many = QUICK_MANY if bench.quick else MANY
    tensors, marks = [torch.empty(kilobytes * 250) for _ in range(many)], itertools.count()
    cells: list[Cell] = []
    with session.capture():
        first = torch.zeros(1, dtype=torch.int64)

    def ours() -> float:
        torch.manual_seed(next(marks))
        for tensor in tensors:
            tensor.random_()
        started = perf_counter()
        with session.capture() as cell:
            torch.cat([torch.index_select(tensor, 0, first) for tensor in tensors]).sum().item()
        cells.append(cell)
        return perf_counter() - started

    nbytes = sum(tensor.nbytes for tensor in tensors)
    taken = bench.alternate({OURS: ours, IDEAL: lambda: _link_s(1, nbytes)}, 5)
    return figure(
        NAME,
        f"upload of {many} tensors of {kilobytes} kB, and one value",
        "s",
        taken,
        [GOAL],
        **_turns(cells[-1], 1),
    )


def _many_down(bench: Bench, session: Session, kilobytes: int) -> Figure:
    many = QUICK_MANY if bench.quick else MANY
    marks = itertools.count(1)

    def ours() -> float:
        mark = next(marks)
        with session.capture():
            lazy = [torch.full((kilobytes * 250,), float(mark + place)) for place in range(many)]
        started = perf_counter()
        plain = session.fetch(lazy)
        taken_s = perf_counter() - started
        assert [float(one[-1]) for one in plain] == [float(mark + place) for place in range(many)]
        return taken_s

    taken = bench.alternate({OURS: ours, IDEAL: lambda: _link_s(1, many * kilobytes * 1000)}, 5)
    return figure(NAME, f"fetch of {many} tensors of {kilobytes} kB", "s", taken, [GOAL], **LINK)
