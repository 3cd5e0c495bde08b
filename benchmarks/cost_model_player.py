"""Programs for the cost model: captured here by the real recorder, run in another process as a worker runs
them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, thread_time
from typing import NamedTuple

import blake3
import torch

from benchmarks.cost_model_graphs import Graph
from djinn_lab.capture.recorders import capturing, make_recorder
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.protocol.worker import FetchedTensor, encode
from djinn_lab.srg.plan_key import keyed
from djinn_lab.srg.program import EncodedProgram, Program, encode_program
from djinn_lab.worker.calibration import calibrate
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import Outcome, StopSignal

SESSION = "session"
MEMORY_BYTES = 2**33


class Captured(NamedTuple):
    """``cells``: the programs of every cell, encoded, in the order in which they ran."""

    folder: Path
    cells: list[list[bytes]]


class Played(NamedTuple):
    """One program's run. ``run_s``: without the time in which the thread had lost its core, where a device
    has one thread. ``peak_bytes``: on the device."""

    run_s: float
    node_times: bytes
    peak_bytes: int
    held_bytes: int


@contextmanager
def captured(graph: Graph, runs: int) -> Iterator[Captured]:
    """Capture the cell that builds a graph's state, and then ``runs`` runs."""
    folder = Path(tempfile.mkdtemp(prefix="djinn-bench-"))
    try:
        backend = _Backend(folder)
        recorder = make_recorder(backend)
        with capturing(recorder, "build", __file__):
            run = graph.build()
            recorder.finish("cell end")
        for _ in range(runs):
            backend.cells.append([])
            with capturing(recorder, "run", __file__):
                result = run()
                recorder.finish("cell end")
            del result
        yield Captured(folder, backend.cells)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Backend:
    """Runs programs in this process so that cells have their results, and keeps them. In a thread of its own:
    inside a dispatched op torch leaves out autograd and more."""

    follow_max = 0

    def __init__(self, folder: Path) -> None:
        self.cells: list[list[bytes]] = [[]]
        self._folder = folder
        self._interpreter = Interpreter(torch.device("cpu"), MEMORY_BYTES, folder)
        self._thread = ThreadPoolExecutor(1)
        self._submitted: Program | None = None

    def stage(self, data: memoryview) -> str:
        digest = blake3.blake3(data).hexdigest()
        (self._folder / digest).write_bytes(data)
        return digest

    def release(self, values: Sequence[int]) -> None:
        self._interpreter.values_of(SESSION).release(values)

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        self._submitted = program.program

    def is_done(self) -> bool:
        return True

    def result(self, cancel: bool = False) -> RunResult:
        program = self._submitted
        assert program is not None
        encoded = encode_program(program)
        self.cells[-1].append(encoded)
        host_stream = torch.default_generator.get_state()
        outcome = self._thread.submit(_run, self._interpreter, encoded, self._folder).result()
        torch.default_generator.set_state(host_stream)
        fetched = [_read(item, self._folder) for item in outcome.fetched]
        return RunResult(
            outcome.executed, fetched, outcome.dynamic_metas, outcome.rng_state, run_s=outcome.run_s
        )


def _run(interpreter: Interpreter, encoded: bytes, folder: Path) -> Outcome:
    key, blobs, _ = keyed(encoded)
    paths = {blob: str(folder / blob) for blob in blobs or ()}
    outcome = interpreter.run(SESSION, encoded, paths, StopSignal(), _ignore_progress, key)
    assert outcome.failure is None, outcome.failure
    return outcome


def _ignore_progress(done: int, total: int) -> None:
    """The run's end is waited for."""


def _read(item: FetchedTensor, folder: Path) -> torch.Tensor:
    data = item.data if item.data is not None else (folder / str(item.blob)).read_bytes()
    dtype: torch.dtype = getattr(torch, item.meta.dtype)
    if not data:
        return torch.empty(item.meta.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(item.meta.shape)


class Player:
    """A process that measures its device, then runs captured programs. Use in a ``with`` statement."""

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_play, args=(theirs, threads), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *failure: object) -> None:
        self._connection.close()
        self._process.join()

    def measure(self) -> bytes:
        """Measure the device; return its curves, encoded."""
        self._connection.send(None)
        curves: bytes = self._connection.recv()
        return curves

    def play(self, programs: Captured) -> list[list[Played]]:
        """Run all cells in order."""
        self._connection.send(programs)
        played: list[list[Played]] = self._connection.recv()
        return played


def _play(connection: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    while True:
        try:
            order: Captured | None = connection.recv()
        except EOFError:
            return
        if order is None:
            connection.send(encode(calibrate(torch.device("cpu"))))
            continue
        interpreter = Interpreter(torch.device("cpu"), MEMORY_BYTES, order.folder)
        connection.send(
            [
                [_played(interpreter, program, order.folder, threads) for program in cell]
                for cell in order.cells
            ]
        )


def _played(interpreter: Interpreter, encoded: bytes, folder: Path, threads: int) -> Played:
    held_bytes = interpreter.memory.used_bytes
    started, cpu_started = perf_counter(), thread_time()
    outcome = _run(interpreter, encoded, folder)
    part = (thread_time() - cpu_started) / (perf_counter() - started)
    run_s = outcome.run_s * min(1.0, part) if threads == 1 else outcome.run_s
    return Played(run_s, outcome.node_times, interpreter.memory.peak_bytes, held_bytes)
