"""What every benchmark gets: a number of rounds, a pool of its own, a place to report cells to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

import djinn_lab
from benchmarks.samples import Samples, alternate
from benchmarks.stage_audit import AuditedCell, audited
from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.runtime_file import DIRECTORY_VARIABLE, RuntimeInfo

START_TIMEOUT_S = 120.0


@contextmanager
def own_runtime() -> Iterator[Path]:
    """A private runtime directory, so that the user's own pool is neither found nor touched."""
    before = {name: value for name, value in os.environ.items() if name.startswith("DJINN_")}
    with tempfile.TemporaryDirectory(prefix="djinn-bench-") as directory:
        for name in before:
            del os.environ[name]
        os.environ[DIRECTORY_VARIABLE] = directory
        try:
            yield Path(directory)
        finally:
            del os.environ[DIRECTORY_VARIABLE]
            os.environ.update(before)


@contextmanager
def own_pool() -> Iterator[RuntimeInfo]:
    """A pool with the product's own defaults, stopped at the end whatever happens."""
    with own_runtime():
        try:
            yield start_pool(wait_s=START_TIMEOUT_S)
        finally:
            stop_pool()


class Bench:
    """Use in a ``with`` statement. The shared pool starts when it is first asked for."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.cells: list[AuditedCell] = []
        self._stack = ExitStack()
        self._session: Session | None = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop_pool()

    def rounds(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def alternate(self, contenders: Mapping[str, Callable[[], float]], rounds: int) -> Samples:
        """Samples as :func:`benchmarks.samples.alternate` takes them; one of each, the first, if quick."""
        return alternate(contenders, self.rounds(rounds, 1), warm_up=not self.quick)

    @property
    def session(self) -> Session:
        """With the shared pool. Torch here gets as many threads as the pool's devices have."""
        if self._session is None:
            info = self._stack.enter_context(own_pool())
            self._session = djinn_lab.connect(info.url, token=info.token, name="benchmark")
            self._stack.callback(self._session.close)
            torch.set_num_threads(self.threads)
        return self._session

    @property
    def threads(self) -> int:
        return self.session.welcome.devices[0].threads

    def stop_pool(self) -> None:
        """What is measured next has the machine to itself."""
        self._session = None
        self._stack.close()

    def audit(self, benchmark: str, cell: Cell) -> None:
        self.cells.append(audited(benchmark, cell.report))
