"""Measure what ``%%djinn`` costs a cell without torch work."""

from __future__ import annotations

from contextlib import nullcontext
from time import perf_counter
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, figure
from benchmarks.samples import scaled

NAME = "empty-cell"


def measure(bench: Bench) -> list[Figure]:
    rounds = 300
    return [_context(bench, rounds), _notebook(bench, rounds)]


def _context(bench: Bench, rounds: int) -> Figure:
    session = bench.session

    def captured() -> float:
        started = perf_counter()
        with session.capture() as cell:
            pass
        elapsed_s = perf_counter() - started
        bench.audit(NAME, cell)
        return elapsed_s

    def plain() -> float:
        started = perf_counter()
        with nullcontext():
            pass
        return perf_counter() - started

    taken = bench.alternate({OURS: captured, "an empty `with`": plain}, rounds)
    return figure(NAME, "with session.capture(): pass", "us", scaled(taken, 1e6))


def _notebook(bench: Bench, rounds: int) -> Figure:
    assert bench.session is not None, "the notebook's session finds the shared pool by its runtime file"
    shell = _shell()
    shell.run_line_magic("load_ext", "djinn_lab")
    try:
        taken = bench.alternate(
            {OURS: lambda: _run(shell, "%%djinn\npass"), "plain cell": lambda: _run(shell, "pass")}, rounds
        )
    finally:
        shell.run_line_magic("unload_ext", "djinn_lab")
        InteractiveShell.clear_instance()
    return figure(NAME, "%%djinn cell in IPython", "us", scaled(taken, 1e6))


def _shell() -> Any:
    settings = Config()
    settings.HistoryManager.enabled = False
    return InteractiveShell.instance(config=settings)


def _run(shell: Any, code: str) -> float:
    started = perf_counter()
    shell.run_cell(code).raise_error()
    return perf_counter() - started
