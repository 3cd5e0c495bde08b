"""Measure what it costs that each user has a process on each device, that kernels have guards, and that lost
values can be made again."""

from __future__ import annotations

import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import djinn_lab
from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, figure, skipped
from benchmarks.guarded_programs import RepeatedOp, calls
from benchmarks.samples import scaled
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.pool.launchers.processes import WORKER_COMMAND
from djinn_lab.pool.lineage.bounds import copy_wanted
from djinn_lab.pool.lineage.log import Run, SessionLog

NAME = "isolation"
SPAWNED = "a spawned worker"
TOGETHER = "--isolation none"
MEMORY_BYTES = 2**28
MEGABYTE = 10**6
WIDTH = 128
STEPS = 8
"""Training steps of a cell of about 200 ops."""
COPY_S = 0.1


class Site:
    """A pool of one device. Every user that is opened stays until its end."""

    def __init__(self, stack: ExitStack, url: str, token: str) -> None:
        self.rest = stack.enter_context(closing(PoolClient(url, token)))
        self._stack = stack
        self._url = url
        self._names = itertools.count(1)

    def open(self) -> Session:
        """Open a session of a new user."""
        name = f"user{next(self._names)}"
        token = self.rest.create_user(name).token
        session = djinn_lab.connect(self._url, token=token, name=name)
        self._stack.callback(session.close)
        return session

    def first_cell(self) -> float:
        """Return how long the first cell of a new user takes to its result."""
        session = self.open()
        started = perf_counter()
        with session.capture():
            total = float(torch.ones(8, 8).sum())
        elapsed_s = perf_counter() - started
        assert total == 64
        return elapsed_s

    def worker_bytes(self) -> list[float]:
        """Return the memory of each worker in proportion: what processes share counts for each in part."""
        (device,) = self.rest.status().devices
        return [float(_proportional_bytes(pid)) for pid in device.workers.values()]


@contextmanager
def _site(**options: Any) -> Iterator[Site]:
    with own_runtime(), ExitStack() as stack:
        stack.callback(stop_pool)
        info = start_pool(
            devices="cpu:1", threads=1, memory_bytes=MEMORY_BYTES, wait_s=START_TIMEOUT_S, **options
        )
        yield Site(stack, info.url, info.token)


def measure(bench: Bench) -> list[Figure]:
    bench.stop_pool()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*_workers(bench), *_cells(bench), *_guards(bench)]
    finally:
        torch.set_num_threads(threads)


def _workers(bench: Bench) -> list[Figure]:
    with _site() as forked, _site(worker_command=WORKER_COMMAND) as spawned:
        sites = {OURS: forked, SPAWNED: spawned}
        for site in sites.values():
            site.first_cell()  # the first user gets the worker that the pool started with
        started = bench.alternate({name: site.first_cell for name, site in sites.items()}, 12)
        figures = [figure(NAME, "first cell of a user, to its result", "ms", scaled(started, 1e3))]
        name, unit = "memory of a worker", "MB"
        try:
            held = {contender: site.worker_bytes() for contender, site in sites.items()}
        except PermissionError:
            reason = "workers cannot be inspected by this account, only by root"
            return [*figures, skipped(NAME, name, unit, reason)]
        taken = scaled(held, 1 / MEGABYTE)
        return [*figures, figure(NAME, name, unit, taken, workers=len(held[OURS]))]


def _proportional_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Notebook:
    """One session's cells. Another user holds something on the device meanwhile, so that both have a part of
    its memory."""

    def __init__(self, site: Site) -> None:
        self._other = site.open()
        with self._other.capture():
            self._held = torch.ones(512, 512)
        self._session = site.open()
        with self._session.capture():
            self._lazy = torch.ones(64, 64)
        self._kept: deque[torch.Tensor] = deque(maxlen=1)  # as `y = x + 1` keeps one
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(64, WIDTH), nn.GELU(), nn.Linear(WIDTH, 10))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self._inputs = torch.randn(64, 64, generator=generator)
        self._labels = torch.randint(0, 10, (64,), generator=generator)
        self.ops = 0
        self.graph_bytes: list[int] = []

    def one_op(self) -> float:
        started = perf_counter()
        with self._session.capture():
            self._kept.append(self._lazy + 1)
        return perf_counter() - started

    def train(self) -> float:
        started = perf_counter()
        with self._session.capture("training", code="train()") as cell:
            for _ in range(STEPS):
                self.optimizer.zero_grad()
                F.cross_entropy(self.network(self._inputs), self._labels).backward()
                self.optimizer.step()
        elapsed_s = perf_counter() - started
        self.ops = cell.report.ops_run
        self.graph_bytes.append(cell.report.graph_bytes)
        return elapsed_s

    @property
    def state_bytes(self) -> int:
        """Parameters, their gradients and momenta."""
        return 3 * sum(parameter.nbytes for parameter in self.network.parameters())

    def weights(self) -> torch.Tensor:
        return torch.cat([one.detach().cpu().flatten() for one in self.network.parameters()])


def _cells(bench: Bench) -> list[Figure]:
    with _site() as apart, _site(isolation="none", accept_weak_isolation=True) as together:
        mine, theirs = Notebook(apart), Notebook(together)
        single = bench.alternate({OURS: mine.one_op, TOGETHER: theirs.one_op}, 200)
        trained = bench.alternate({OURS: mine.train, TOGETHER: theirs.train}, 60)
        equal = torch.equal(mine.weights(), theirs.weights())
        return [
            figure(NAME, "cell of one op", "ms", scaled(single, 1e3)),
            figure(NAME, "training cell", "ms", scaled(trained, 1e3), ops=mine.ops, equal=equal),
            *_lineage(mine, trained[OURS]),
        ]


def _lineage(notebook: Notebook, cells_s: list[float]) -> list[Figure]:
    """What a session's log takes for the training cells that were measured: it has their whole graphs."""
    kept = SessionLog()
    noted_s, held = [], []
    graphs = notebook.graph_bytes[-len(cells_s) :]
    for number, nbytes in enumerate(graphs):
        run = Run(kept.next_serial(), f"job{number}", 0, bytes(nbytes), (), None)
        started = perf_counter()
        kept.ran(run)
        copy_wanted(kept, COPY_S)
        noted_s.append(perf_counter() - started)
        held.append(float(kept.nbytes) / (number + 1))
    state = "the session's state"
    time_taken = scaled({OURS: noted_s, "the cell": cells_s}, 1e6)
    bytes_taken = {OURS: held, state: [float(notebook.state_bytes)] * len(held)}
    return [
        figure(NAME, "a training cell noted in its session's log", "us", time_taken),
        figure(NAME, "log of a training cell", "B", bytes_taken, cells=len(graphs), log_bytes=kept.nbytes),
    ]


def _guards(bench: Bench) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="djinn-bench-") as directory:
        return [
            _guard(bench, Path(directory), name, op, arguments) for name, (op, arguments) in calls().items()
        ]


def _guard(bench: Bench, directory: Path, name: str, op: str, arguments: Any) -> Figure:
    contenders = {
        OURS: RepeatedOp(directory, op, arguments, guarded=True),
        "without guards": RepeatedOp(directory, op, arguments, guarded=False),
    }
    samples: dict[str, Callable[[], float]] = {key: one.sample for key, one in contenders.items()}
    taken = bench.alternate(samples, 60)
    ours, theirs = (one.results() for one in contenders.values())
    equal = all(
        one is other or (one is not None and other is not None and torch.equal(one, other))
        for one, other in zip(ours, theirs, strict=True)
    )
    return figure(NAME, f"guarded op: {name}", "us", scaled(taken, 1e6), equal=equal)
