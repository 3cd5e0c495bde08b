"""Capture and a worker's interpreter in one process: the whole path but for sockets and the pool."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import blake3
import torch

from djinn_lab.capture.host.random_stream import DEFAULT
from djinn_lab.capture.recorders import Recorder, capturing
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.client.remote_errors import to_exception
from djinn_lab.errors import PoolError
from djinn_lab.pool.sessions.answers import worker_error
from djinn_lab.protocol.worker import FetchedTensor
from djinn_lab.srg.program import EncodedProgram, Program, encode_program
from djinn_lab.srg.validation import validate_program
from djinn_lab.worker.interpreter import Interpreter

_WORKER = ThreadPoolExecutor(1, thread_name_prefix="in-process worker")
"""Inside a dispatched op torch leaves out conjugation, autograd and more for its thread; a worker knows
nothing of that."""


class _Submitted(NamedTuple):
    program: Program
    cut: Cut
    follows: bool


class InProcessBackend:
    """Keeps every program it ran, in ``programs`` with its cut in ``cuts``. ``busy``: it says that it is not
    done yet, so that the cell records further and sends more behind it. ``run_s``: seconds
    that it says each program took."""

    follow_max = 2

    def __init__(self, memory_bytes: int = 2**33) -> None:
        self.busy, self.run_s = False, 0.0
        self.followed = 0
        self._submitted: deque[_Submitted] = deque()
        self._ended_well = True
        self.directory = Path(tempfile.mkdtemp(prefix="djinn-test-"))
        weakref.finalize(self, shutil.rmtree, self.directory, True)
        self.interpreter = Interpreter(torch.device("cpu"), memory_bytes, self.directory)
        self.programs: list[Program] = []
        self.cuts: list[Cut] = []
        self.released: list[int] = []

    def stage(self, data: memoryview) -> str:
        digest = blake3.blake3(data).hexdigest()
        (self.directory / digest).write_bytes(data)
        return digest

    def release(self, values: Sequence[int]) -> None:
        self.released.extend(values)
        session = self.interpreter.sessions.get("s")
        for value in values if session is not None else ():
            session.drop(value)

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        assert len(self._submitted) <= self.follow_max
        self.followed += bool(self._submitted)
        self._submitted.append(_Submitted(program.program, cut, bool(self._submitted)))

    def is_done(self) -> bool:
        return not self.busy

    def result(self, cancel: bool = False) -> RunResult:
        program, cut, follows = self._submitted.popleft()
        if follows and not self._ended_well:
            return RunResult(0, error=PoolError("the part before it failed"), arrived=False)
        result = self.run(program, cut)
        self._ended_well = result.error is None
        return result

    def run(self, program: Program, cut: Cut) -> RunResult:
        validate_program(program)
        self.programs.append(program)
        self.cuts.append(cut)
        blobs = {
            source.blob: str(self.directory / source.blob)
            for source in program.sources
            if source.blob is not None
        }
        host_stream = DEFAULT.get_state()  # a real worker has a generator of its own
        outcome = _WORKER.submit(
            self.interpreter.run, "s", encode_program(program), blobs, lambda: None, lambda *_: None
        ).result()
        DEFAULT.set_state(host_stream)
        error = None
        if outcome.failure is not None:
            error = to_exception(worker_error(outcome.failure, None), program, "")
        return RunResult(
            outcome.executed,
            [read_fetched(item, self.directory) for item in outcome.fetched],
            outcome.dynamic_metas,
            outcome.rng_state,
            error,
            arrived=not outcome.missing,
            run_s=self.run_s,
            missing=outcome.missing,
        )


def read_fetched(item: FetchedTensor, results: Path) -> torch.Tensor:
    data = item.data if item.data is not None else (results / (item.blob or "")).read_bytes()
    dtype: torch.dtype = getattr(torch, item.meta.dtype)
    if not data:
        return torch.empty(item.meta.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(item.meta.shape)


@contextmanager
def cell(recorder: Recorder, cause: str = "cell end") -> Iterator[None]:
    with capturing(recorder, "cell", __file__):
        yield
        recorder.finish(cause)
