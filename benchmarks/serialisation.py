"""Measure how long a tensor takes to bytes that another process reads, and back, beside ``torch.save``."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.samples import Samples, scaled
from djinn_lab.capture.host.memory_bytes import bytes_of
from djinn_lab.capture.values import Layout
from djinn_lab.client.blobs import digest_of, write_blob
from djinn_lab.srg.blob_names import UNHASHED_BYTES_MIN, draw_name, sketch_of
from djinn_lab.srg.program import Source
from djinn_lab.worker.transfer import load_source

NAME = "serialisation"
MEGABYTE = 10**6
SIZES_MB = (1, 16, 256)
GOAL = Goal(1 / 3, baseline="torch.save, file")
CPU = torch.device("cpu")
PAGE_BYTES = 4096


class Ways:
    """Each way takes ``tensor`` to bytes (``encode``) and back (``decode``); files lie in shared memory."""

    def __init__(self, directory: Path, nbytes: int) -> None:
        self._ours, self._theirs = directory / "blob", directory / "saved"
        self._memory = io.BytesIO()
        self.tensor = torch.randn(nbytes // 4, generator=torch.Generator().manual_seed(1))
        self._target = torch.empty_like(self.tensor)
        self._layout = Layout.of_tensor(self.tensor)
        self.restored: dict[str, torch.Tensor] = {}

    def encode_ours(self) -> None:
        data = bytes_of(self.tensor, self._layout)
        if data.nbytes < UNHASHED_BYTES_MIN:
            self._name = digest_of(data)
        else:
            sketch_of(data.nbytes, lambda start, count: data[start : start + count])
            self._name = draw_name()
        write_blob(self._ours, data)

    def decode_ours(self) -> None:
        source = Source(0, 0, 0, "input", self._name)
        loaded = load_source(source, self._layout.meta, {self._name: str(self._ours)}, CPU)
        self._restore(OURS, loaded)

    def encode_to_file(self) -> None:
        torch.save(self.tensor, self._theirs)

    def decode_from_file(self) -> None:
        self._restore("torch.save, file", torch.load(self._theirs))

    def encode_to_memory(self) -> None:
        self._memory = io.BytesIO()
        torch.save(self.tensor, self._memory)

    def decode_from_memory(self) -> None:
        self._memory.seek(0)
        self._restore("torch.save, memory", torch.load(self._memory))

    def copy(self) -> None:
        self._target.copy_(self.tensor)

    def clone(self) -> None:
        self._restore("memcpy to new memory", self.tensor.clone())

    def _restore(self, name: str, tensor: torch.Tensor) -> None:
        """Touch every page, so that mapped memory counts as read."""
        tensor.view(torch.uint8)[::PAGE_BYTES].sum()
        self.restored[name] = tensor

    def forget(self) -> None:
        """Delete leftovers outside the timing."""
        self.restored.clear()
        self._ours.unlink(missing_ok=True)
        self._theirs.unlink(missing_ok=True)


def measure(bench: Bench) -> list[Figure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(bench.threads)
    try:
        return [item for size in SIZES_MB[: 2 if bench.quick else None] for item in _measure(bench, size)]
    finally:
        torch.set_num_threads(threads)


def _measure(bench: Bench, size_mb: int) -> list[Figure]:
    base = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=base if base.exists() else None) as directory:
        ways = Ways(Path(directory), size_mb * MEGABYTE)
        pairs = {
            OURS: (ways.encode_ours, ways.decode_ours),
            "torch.save, file": (ways.encode_to_file, ways.decode_from_file),
            "torch.save, memory": (ways.encode_to_memory, ways.decode_from_memory),
            "memcpy": (ways.copy, ways.copy),
            "memcpy to new memory": (ways.clone, ways.clone),
        }
        halves: dict[str, Samples] = {"encode": {}, "decode": {}}
        for name in pairs:
            halves["encode"][name], halves["decode"][name] = [], []

        def both(name: str) -> Callable[[], float]:
            encode, decode = pairs[name]

            def sample() -> float:
                ways.forget()
                started = perf_counter()
                encode()
                encoded = perf_counter()
                decode()
                decoded = perf_counter()
                halves["encode"][name].append(encoded - started)
                halves["decode"][name].append(decoded - encoded)
                return decoded - started

            return sample

        rounds = 30 if size_mb < 100 else 9
        whole = bench.alternate({name: both(name) for name in pairs}, rounds)
        ways.encode_ours()
        ways.decode_ours()
        equal = torch.equal(ways.restored[OURS], ways.tensor)
    counted = {
        what: {name: taken[-len(whole[name]) :] for name, taken in taken_by.items()}
        for what, taken_by in halves.items()
    }
    return [
        figure(
            NAME,
            f"{what} {size_mb} MB",
            "ms",
            scaled(taken, 1e3),
            goals,
            bytes=size_mb * MEGABYTE,
            equal=equal,
        )
        for what, taken, goals in (
            ("there and back,", whole, [GOAL]),
            ("encode", counted["encode"], []),
            ("decode", counted["decode"], []),
        )
    ]
