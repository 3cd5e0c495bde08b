"""A session that is lost in mid-way, restored from its last whole copy and replayed, is the session that was
never lost: random programs with views, writes, shared weights, random numbers and failures."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from comparing import Left
from random_programs import SQUARE, RandomPrograms
from worker_kit import MIB, Device

from djinn_lab.pool.lineage.log import Copy, Run, SessionLog
from djinn_lab.pool.lineage.pruning import needed, unread
from djinn_lab.pool.lineage.steps import step_of
from djinn_lab.protocol.worker import CopyDone, Resume
from djinn_lab.srg.plan_key import plan_key
from djinn_lab.srg.program import decode_program, encode_program
from djinn_lab.worker.outcome import Outcome, Stop

ROUNDS, LOSSES, PROGRAMS = 25, 3, 4


class LosableSession:
    """A session that may lose its device at any time, and what a pool knows about the session."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        made = torch.Generator().manual_seed(seed)
        self.squares = [torch.randn(SQUARE, generator=made) for _ in range(2)]
        self.devices: list[Device] = []
        self.undisturbed = self._device(native=False)
        self.device = self._device()
        self.programs = RandomPrograms(seed, ["blob0", "blob1"])
        self.log = SessionLog()
        self.copy: CopyDone | None = None
        self.replayed = 0

    def _device(self, native: bool = True) -> Device:
        device = Device(self.directory / f"device{len(self.devices)}", 8 * MIB, 8 * MIB, native=native)
        for index, square in enumerate(self.squares):
            device.blob(square, f"blob{index}")
        self.devices.append(device)
        return device

    def run_one(self) -> None:
        program = self.programs.next()
        expected = self.undisturbed.try_run("ann", program)
        encoded, key, resume = encode_program(program), plan_key(encode_program(program)), None
        while True:
            serial = self.log.next_serial()
            found = self._run(encoded, key, resume, serial, self._stops())
            begin, rng_state = (0, None) if resume is None else (resume.executed, resume.rng_state)
            if found.stopped is None:
                end = found.executed if found.failure is not None else None
                self.log.ran(Run(serial, "job", len(encoded), encoded, (), key, begin, rng_state, end))
                break
            if found.executed > begin:
                at = found.executed
                run = Run(serial, "job", len(encoded), encoded, (), key, begin, rng_state, at, closes=False)
                self.log.ran(run)
            resume = Resume(found.executed, found.rng_state)
            self.maybe_copy()
        assert found.executed == expected.executed
        self.maybe_copy()

    def _run(
        self,
        encoded: bytes,
        key: bytes | None,
        resume: Resume | None,
        serial: int,
        stops: Callable[[], Stop | None],
    ) -> Outcome:
        blobs = {f"blob{index}": str(self.device.directory / f"blob{index}") for index in range(2)}
        return self.device.interpreter.run(
            "ann", encoded, blobs, stops, lambda done, total: None, key, resume, serial=serial
        )

    def _stops(self) -> Callable[[], Stop | None]:
        """Preempt after some loads and ops, or not at all."""
        left = [self.random.choice((1000, self.random.randrange(1, 25)))]

        def should_stop() -> Stop | None:
            left[0] -= 1
            return "preempted" if left[0] < 0 else None

        return should_stop

    def maybe_copy(self) -> None:
        if self.random.random() < 0.3:
            self.copy = self.device.store_whole("ann")
            self.log.copied(Copy(self.copy.serial, 1, self.copy.values))

    def release_some(self) -> None:
        held = [*self.undisturbed.interpreter.values_of("ann").tensors]
        values = [value for value in held if value in self.programs._alive and self.random.random() < 0.1]
        self.programs._alive = [value for value in self.programs._alive if value not in values]
        self.programs._caches = [value for value in self.programs._caches if value not in values]
        for device in (self.undisturbed, self.device):
            device.interpreter.release("ann", values)
        self.log.release(values)

    def lose(self) -> None:
        """Continue on another device, as a pool does."""
        self.device = self._device()
        if self.log.lost() and self.log.copy is not None:
            assert self.copy is not None
            released = [value for _, values in self.log.released for value in values]
            self.device.restore("ann", self.copy.manifest, unread(self.log.pending, released))
        dead = [value for _, values in self.log.released for value in values]
        flags, skipped = needed(self.log.pending, dead), list[int]()
        while self.log.pending:
            run = self.log.pending[0]
            if not flags[0]:
                skipped += decode_program(run.program).release
                self.log.replayed(run)
                del flags[0]
                continue
            step = step_of(run)
            found = self._run(step.program, step.key, step.resume, run.serial, self._stops())
            assert found.failure is None, found.failure
            self.maybe_copy()  # reported before the run's answer
            if found.stopped is None:
                self.replayed += step.ops
                self.log.replayed(run)
                del flags[0]
            else:
                self.log.split(run, found.executed, found.rng_state)
        serial, dropped = self.log.release_all(skipped)
        self.device.interpreter.release("ann", dropped, serial)

    def compare(self) -> None:
        here, there = (
            Left.of(device.interpreter.values_of("ann")) for device in (self.device, self.undisturbed)
        )
        assert here == there

    def close(self) -> None:
        for device in self.devices:
            device.close()


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_session_lost_and_made_again_is_as_if_it_had_not_been_lost(tmp_path: Path, seed: int) -> None:
    session = LosableSession(tmp_path, seed)
    try:
        for _ in range(LOSSES):
            for _ in range(PROGRAMS):
                session.run_one()
                session.release_some()
            session.lose()
            session.compare()
        assert session.log.pending == []
    finally:
        session.close()


def test_the_random_sessions_are_restored_and_replayed(tmp_path: Path) -> None:
    """The comparison above compares something."""
    session = LosableSession(tmp_path, 3)
    try:
        for _ in range(12):
            session.run_one()
        skipped = needed(session.log.runs, [])
        session.lose()
        assert session.replayed > 0
        assert session.log.copy is not None
        assert session.device.interpreter.values_of("ann").tensors
        assert len(skipped) > 0
    finally:
        session.close()
