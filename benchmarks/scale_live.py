"""Many waiting cells on a live pool: does what an event costs, and how long the pool makes others wait,
depend on how many wait?

A thousand sessions hand in small cells, from one other process over one connection each. *Held*: no device
serves (all are cordoned), so that all of them wait while the pool is asked and its pages and commands are
timed; then the devices serve and every cell ends. A pool of its own with ten sessions, of as many cells each,
is the baseline."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import ForkContext, SpawnContext
from time import perf_counter

import httpx
import psutil

from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure, skipped
from benchmarks.scale_sessions import WINDOW, Load, record_cell, serve_load
from djinn_lab.client.rest import PoolClient
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "scale-live"
DEVICES = 2
SESSIONS, FEW_SESSIONS, CELLS = 1_000, 10, 10
QUICK_SESSIONS, QUICK_FEW, QUICK_CELLS = 20, 4, 2
OPS = 10
PROBE_EVERY_S = 0.02
READS = ("/v1/queue", "/v1/jobs?limit=100", "/v1/memory", "/v1/sessions", "/v1/status", "/metrics")
FEW = "10 sessions"
ENDED_TIMEOUT_S = 600.0
MS = 1e3

Ask = Callable[[str, int], Load]


@dataclass
class Run:
    """One pool with so many sessions. Seconds by this process's clock; ``alive_s`` by the phase of the run.
    ``cpu_s``: of the server's process, for all ``cells``."""

    sessions: int
    cells: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    filled_s: float = 0.0
    drained_s: float = 0.0
    waiting: int = 0
    alive_s: dict[str, list[float]] = field(default_factory=dict)
    acknowledged_s: dict[str, list[float]] = field(default_factory=dict)
    read_s: dict[str, list[float]] = field(default_factory=dict)


def measure(bench: Bench) -> list[Figure]:
    program = record_cell(OPS)
    cells = bench.rounds(CELLS, QUICK_CELLS)
    few = _on_own_pool(bench.rounds(FEW_SESSIONS, QUICK_FEW), cells, bench.rounds(10, 1), 1, program)
    many = _on_own_pool(bench.rounds(SESSIONS, QUICK_SESSIONS), cells, 1, bench.rounds(5, 1), program)
    return [*_latencies(many, few), *_costs(many, few), *_reads(many, few)]


def _on_own_pool(sessions: int, cells: int, rounds: int, reads: int, program: bytes) -> Run:
    with own_runtime():
        try:
            info = start_pool(devices=f"cpu:{DEVICES}", threads=1, wait_s=START_TIMEOUT_S)
            with load_of(info, program, sessions) as ask, closing(PoolClient(info.url, info.token)) as chief:
                run = Run(sessions)
                ask("submit", 1)  # so that every session has a device
                ask("ended", 0)
                for _ in range(rounds):
                    _round(run, info, chief, ask, cells, reads)
                return run
        finally:
            stop_pool()


def _round(run: Run, info: RuntimeInfo, chief: PoolClient, ask: Ask, cells: int, reads: int) -> None:
    server = psutil.Process(info.pid)
    devices = [row.device for row in chief.status().devices]
    for device in devices:
        chief.cordon(device)
    before_s, started_s = _cpu_s(server), perf_counter()
    with _probing(info, run.alive_s.setdefault("handed in", [])):
        load = ask("submit", cells)
    run.cpu_s, run.filled_s = run.cpu_s + _cpu_s(server) - before_s, perf_counter() - started_s
    run.acknowledged_s.setdefault("held", []).extend(load.acknowledged_s)
    run.waiting = chief.queue().waiting_count
    with _probing(info, run.alive_s.setdefault("read", [])):
        _time_reads(run, info, chief, reads)
    before_s, started_s = _cpu_s(server), perf_counter()
    for device in devices:
        chief.uncordon(device)
    with _probing(info, run.alive_s.setdefault("run", [])):
        load = ask("ended", 0)
    run.cpu_s, run.drained_s = run.cpu_s + _cpu_s(server) - before_s, perf_counter() - started_s
    run.acknowledged_s.setdefault("run", []).extend(load.acknowledged_s)
    run.cells += sum(load.ended.values())
    for how, count in load.ended.items():
        run.ended[how] = run.ended.get(how, 0) + count


@contextmanager
def load_of(info: RuntimeInfo, program: bytes, sessions: int, *, forked: bool = True) -> Iterator[Ask]:
    """Open the sessions in a process of their own. Yields a call that sends an order and returns the load.
    ``forked``: not where this process has threads that a child would miss, such as Ray's."""
    context: ForkContext | SpawnContext = get_context("fork") if forked else get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve_load, args=(there, info, program, sessions), name="load")
    process.start()

    def ask(what: str, cells: int) -> Load:
        here.send((what, cells))
        if not here.poll(ENDED_TIMEOUT_S):
            raise TimeoutError(f"not every cell was {what} within {ENDED_TIMEOUT_S:.0f} s")
        load = here.recv()
        assert isinstance(load, Load)
        return load

    try:
        ask("open", 0)
        yield ask
        ask("close", 0)
    finally:
        process.terminate()
        process.join()


@contextmanager
def _probing(info: RuntimeInfo, taken_s: list[float]) -> Iterator[None]:
    """Time ``/v1/alive`` over a connection that is kept, every now and then, from a thread."""
    over = threading.Event()

    def probe() -> None:
        with httpx.Client(base_url=info.url, trust_env=False, timeout=60) as http:
            while True:
                started_s = perf_counter()
                assert http.get("/v1/alive").status_code == 200
                taken_s.append(perf_counter() - started_s)
                if over.wait(PROBE_EVERY_S):
                    return

    thread = threading.Thread(target=probe, name="probe")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _time_reads(run: Run, info: RuntimeInfo, chief: PoolClient, times: int) -> None:
    job = chief.jobs(limit=1)[0].job
    with httpx.Client(
        base_url=info.url, headers={"Authorization": f"Bearer {info.token}"}, trust_env=False, timeout=60
    ) as http:
        for _ in range(times):
            for path in (*READS, f"/v1/jobs/{job}/why"):
                name = "GET " + path.partition("?")[0].replace(job, "JOB")
                started_s = perf_counter()
                http.get(path).raise_for_status()
                run.read_s.setdefault(name, []).append(perf_counter() - started_s)
            for arguments in (["queue"], ["why", job], ["pool", "status"]):
                command = [sys.executable, "-m", "djinn_lab.cli", *arguments]
                started_s = perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                name = f"djinn-lab {' '.join(arguments).replace(job, 'JOB')}"
                run.read_s.setdefault(name, []).append(perf_counter() - started_s)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _latencies(many: Run, few: Run) -> list[Figure]:
    facts = {
        "sessions": many.sessions,
        "waiting": many.waiting,
        "cells": many.cells,
        "ended": many.ended,
        "filled_s": many.filled_s,
        "drained_s": many.drained_s,
        "probe_every_s": PROBE_EVERY_S,
        "on_their_way": WINDOW,
    }
    figures = [
        figure(NAME, f"/v1/alive while cells are {when}", "ms", _paired(many, few, when), goals, **facts)
        for when, goals in (
            ("handed in", [Goal(50, "p99")]),
            ("read", [Goal(50, "p99")]),
            ("run", [Goal(50, "p99")]),
        )
    ]
    acknowledged = _beside(many.acknowledged_s, few.acknowledged_s, "held")
    name = "from handing in to the first answer, while none runs"
    figures.append(figure(NAME, name, "ms", acknowledged, [Goal(100, "p99")], **facts))
    name = "from handing in to the first answer, while all run"
    if not (many.acknowledged_s["run"] and few.acknowledged_s["run"]):
        return [*figures, skipped(NAME, name, "ms", "all cells ended before another was handed in")]
    running = _beside(many.acknowledged_s, few.acknowledged_s, "run")
    return [*figures, figure(NAME, name, "ms", running, [Goal(100, "p99")], **facts)]


def _paired(many: Run, few: Run, when: str) -> dict[str, list[float]]:
    return _beside(many.alive_s, few.alive_s, when)


def _beside(many: dict[str, list[float]], few: dict[str, list[float]], name: str) -> dict[str, list[float]]:
    """In milliseconds. Samples of different pools make no pairs: the baseline's are repeated, for a ratio."""
    ours, theirs = many[name], few[name]
    paired = [theirs[number % len(theirs)] for number in range(len(ours))]
    return {OURS: [value * MS for value in ours], FEW: [value * MS for value in paired]}


def _costs(many: Run, few: Run) -> list[Figure]:
    """Over all cells, so that a figure is one sample."""
    per_cell = {OURS: [many.cpu_s / many.cells * MS], FEW: [few.cpu_s / few.cells * MS]}
    goals = [Goal(1.5, baseline=FEW)]
    cells = {"cells": many.cells, "cells_of_few": few.cells}
    lost = {OURS: _lost(many), FEW: _lost(few)}
    return [
        figure(NAME, "CPU time of the server for a cell", "ms", per_cell, goals, **cells),
        figure(
            NAME,
            "cells that did not end well",
            "cells",
            {OURS: [lost[OURS]]},
            [Goal(0)],
            **cells,
            values=lost,
        ),
    ]


def _lost(run: Run) -> float:
    return float(sum(count for how, count in run.ended.items() if how != "done"))


def _reads(many: Run, few: Run) -> list[Figure]:
    title = f"{{}} with {many.waiting:,} waiting cells"
    return [
        figure(
            NAME, title.format(name), "ms", _beside(many.read_s, few.read_s, name), [Goal(1_000, "maximum")]
        )
        for name in many.read_s
    ]
