"""One session's programs, some of them mutated, through what a pool and a worker do with a submission."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch
from blake3 import blake3
from random_programs import SIZE, RandomPrograms
from sweeps.mutants.mutating import mutated

from djinn_lab.errors import DjinnError
from djinn_lab.pool.sessions.admission import PlanCache, inspect_program
from djinn_lab.srg.program import encode_program
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import StopSignal

MEMORY_BYTES = 16 * 2**20
RUN_S = 2.0
REFUSED, RAN, RAISED, TRACEBACK, GREW = "refused", "ran", "an op raised", "a traceback", "memory grew"
BAD = (TRACEBACK, GREW)
PROGRAMS = 4
KNOWN = ("where capture predicted", "the values of a ", "this value was on a device")
"""Answers to a program that contradicts itself, or reads what its session lacks: the caller's own fault."""


class Session:
    """A pool's admission and a worker's interpreter, shared by the sessions of many seeds."""

    def __init__(self, directory: Path) -> None:
        self._plans = PlanCache(200)
        self._directory = directory
        self._interpreter = Interpreter(torch.device("cpu"), MEMORY_BYTES, directory)
        self._blobs: dict[str, str] = {}
        for value in (0.5, 2.0):
            content = torch.full((SIZE, SIZE), value).numpy().tobytes()
            path = directory / blake3(content).hexdigest()
            path.write_bytes(content)
            self._blobs[path.name] = str(path)

    def run(self, seed: int) -> list[tuple[str, str]]:
        """Return the outcome of each program, with the text of what was wrong."""
        choose = random.Random(seed)
        programs = RandomPrograms(seed, list(self._blobs))
        found = []
        for _ in range(PROGRAMS):
            encoded = encode_program(programs.next())
            if choose.random() < 0.4:
                encoded = mutated(encoded, choose)
            found.append(self._submit(str(seed), encoded))
        self._interpreter.close(str(seed))
        held = self._interpreter.memory.used_bytes
        if held:
            found.append((GREW, f"{held} bytes are left of a closed session"))
            self._interpreter = Interpreter(torch.device("cpu"), MEMORY_BYTES, self._directory)
        for file in self._directory.glob("result-*"):
            file.unlink()
        return found

    def _submit(self, session: str, encoded: bytes) -> tuple[str, str]:
        try:
            inspected = asyncio.run(inspect_program(encoded, self._plans))
        except DjinnError as error:
            return REFUSED, str(error)
        except Exception as error:  # noqa: BLE001 - just these are looked for
            return TRACEBACK, f"admission: {type(error).__name__}: {error}"
        if any(name not in self._blobs for name in inspected.blobs):
            return REFUSED, "a blob is not there"
        stop, deadline_s = StopSignal(), time.monotonic() + RUN_S

        def report(_done: int, _total: int) -> None:
            if time.monotonic() > deadline_s:
                stop.ask("cancelled")

        outcome = self._interpreter.run(session, encoded, self._blobs, stop, report, inspected.key)
        failure = outcome.failure
        if failure is None:
            return RAN, ""
        if failure.family == "pool" and not any(known in failure.message for known in KNOWN):
            return TRACEBACK, f"worker: {failure.type_name}: {failure.message} {failure.frames[-2:]}"
        return RAISED, failure.message


def run_seeds(seeds: range, directory: Path, send: BinaryIO) -> None:
    """Write a line for each seed: before it, its number; after it, its outcomes, and the text of bad ones."""
    torch.set_num_threads(1)
    session = Session(directory)
    encode = msgspec.json.Encoder().encode
    for seed in seeds:
        send.write(encode(seed) + b"\n")
        found = session.run(seed)
        counts = Counter(outcome for outcome, _ in found)
        bad = [[outcome, text[:400]] for outcome, text in found if outcome in BAD]
        send.write(encode([counts, bad]) + b"\n")
