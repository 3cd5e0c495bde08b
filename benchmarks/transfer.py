"""Measure how fast tensors get to the pool and back, beside a copy within this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import perf_counter

import torch

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, figure
from benchmarks.samples import Samples
from benchmarks.stage_audit import median_stages
from djinn_lab.client.report import CellReport

NAME = "transfer"
MEGABYTE = 10**6
SIZES_MB = (1, 16, 256, 500)


class Upload:
    """Every sample sends contents that the pool has not seen, since equal ones travel once."""

    def __init__(self, bench: Bench, nbytes: int) -> None:
        self._bench = bench
        self._tensor = torch.zeros(nbytes // 4)
        self._target = torch.zeros_like(self._tensor)
        with bench.session.capture():
            self._first = torch.zeros(1, dtype=torch.int64)  # lazy, so that the cell's op is captured too
        self._marks = itertools.count(1)
        self.reports: list[CellReport] = []

    def sample(self) -> float:
        """A cell that needs all of the tensor on the pool, and next to no arithmetic."""
        tensor = self._tensor
        tensor.fill_(next(self._marks))
        with self._bench.session.capture() as cell:
            self._kept = torch.index_select(tensor, 0, self._first)
        self._bench.audit(NAME, cell)
        assert cell.report.bytes_up >= tensor.nbytes
        self.reports.append(cell.report)
        return cell.report.total_s

    def memcpy(self) -> float:
        self._tensor.fill_(next(self._marks))
        started = perf_counter()
        self._target.copy_(self._tensor)
        return perf_counter() - started

    def clone(self) -> float:
        self._tensor.fill_(next(self._marks))
        started = perf_counter()
        self._tensor.clone()
        return perf_counter() - started


class Download:
    def __init__(self, bench: Bench, nbytes: int) -> None:
        self._bench = bench
        self._count = nbytes // 4
        self._marks = itertools.count(1)

    def sample(self) -> float:
        session = self._bench.session
        mark = next(self._marks)
        with session.capture():
            lazy = torch.full((self._count,), float(mark))
        started = perf_counter()
        plain = session.fetch(lazy)
        elapsed_s = perf_counter() - started
        assert float(plain[-1]) == mark
        return elapsed_s


def measure(bench: Bench) -> list[Figure]:
    return [item for size in SIZES_MB[: 2 if bench.quick else None] for item in _both_ways(bench, size)]


def _both_ways(bench: Bench, size_mb: int) -> list[Figure]:
    nbytes = size_mb * MEGABYTE
    upload, download = Upload(bench, nbytes), Download(bench, nbytes)
    copies: dict[str, Callable[[], float]] = {
        "memcpy": upload.memcpy,
        "memcpy to new memory": upload.clone,
    }
    rounds = 40 if size_mb < 100 else 9
    up = bench.alternate({OURS: upload.sample, **copies}, rounds)
    down = bench.alternate({OURS: download.sample, **copies}, rounds)
    return [
        figure(
            NAME,
            f"upload of {size_mb} MB, whole cell",
            "GB/s",
            _rates(up, nbytes),
            bytes=nbytes,
            median_stages_s=median_stages(upload.reports),
        ),
        figure(NAME, f"download of {size_mb} MB", "GB/s", _rates(down, nbytes), bytes=nbytes),
    ]


def _rates(taken_s: Samples, nbytes: int) -> Samples:
    return {name: [nbytes / 1e9 / seconds for seconds in samples] for name, samples in taken_s.items()}
