"""Answers the messages about session memory: begins copies, and does what is bookkeeping at once.

Called by the thread that reads the connection, never behind a running program.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence

from djinn_lab.protocol import worker as messages
from djinn_lab.protocol.worker import (
    CopyDone,
    CopyFailed,
    FirstValuesCopied,
    Reads,
    WorkerMemory,
)
from djinn_lab.units import format_bytes
from djinn_lab.worker import parking
from djinn_lab.worker.accelerator.device import DEVICE_FAULT, fault_of, is_accelerator
from djinn_lab.worker.copying import Copies
from djinn_lab.worker.lanes import Lane, LaneTask
from djinn_lab.worker.loading import WantedValues
from djinn_lab.worker.parked import read_manifest
from djinn_lab.worker.restoring import Copied, SessionGone, TransferProblem
from djinn_lab.worker.values import SessionValues

Answer = FirstValuesCopied | CopyDone | CopyFailed
Copying = messages.StoreState | messages.Restore | messages.Demote
Message = Copying | messages.Evict | messages.Forget | messages.CopyKept | messages.Expedite
MESSAGES = (
    messages.StoreState,
    messages.Restore,
    messages.Demote,
    messages.Evict,
    messages.Forget,
    messages.CopyKept,
    messages.Expedite,
)

log = logging.getLogger(__name__)


class TierService:
    """``find``: the values of a session, made where it has none yet."""

    def __init__(
        self,
        copies: Copies,
        find: Callable[[str], SessionValues],
        memory: Callable[[], WorkerMemory],
        send: Callable[[Answer], None],
    ) -> None:
        self._copies = copies
        self._find = find
        self._memory = memory
        self._send = send
        self._wanted: dict[int, WantedValues] = {}
        seconds = copies.link.seconds
        self._lanes = {
            "store": Lane("out", seconds),
            "restore": Lane("in", seconds),
            "demote": Lane("to disk", lambda nbytes: 0.0),
        }

    def handle(self, message: Message) -> None:
        if isinstance(message, messages.Expedite):
            wanted = self._wanted.get(message.transfer)
            if wanted is not None and message.reads is not None:
                wanted.reads = message.reads
            for lane in self._lanes.values():
                lane.expedite(message.transfer)
            return
        if isinstance(message, messages.CopyKept):
            self._copies.kept(message.session, message.transfer)
            return
        values = self._find(message.session)
        if isinstance(message, messages.Evict):
            self._at_once(message, "evict", lambda: self._evict(message, values))
        elif isinstance(message, messages.Forget):
            self._at_once(message, "forget", lambda: self._forget(values))
        else:
            self._begin(message, values)

    def stop(self) -> None:
        for lane in self._lanes.values():
            lane.stop()

    def _begin(self, message: Copying, values: SessionValues) -> None:
        copied = Copied(message.transfer)
        copies, session = self._copies, message.session
        steps: Iterator[int]
        kind: messages.TransferKind
        wanted = WantedValues()
        if isinstance(message, messages.StoreState):
            kind, expedited = "store", message.expedited
            steps = copies.store(session, values, copied)
        elif isinstance(message, messages.Demote):
            kind, expedited = "demote", False
            steps = copies.demote(session, values, copied, message.transfer)
        else:
            kind, expedited = "restore", message.expedited
            wanted = self._wanted[message.transfer] = self._want(message)
            steps = self._restore(message, values, copied, wanted)

        def finish(job: LaneTask, problem: Exception | None) -> None:
            if not isinstance(problem, SessionGone):
                self._send(self._result(job, session, kind, copied, problem))
            self._wanted.pop(job.transfer, None)
            copies.restore_ended(values, wanted)

        self._lanes[kind].add(LaneTask(message.transfer, steps, finish, expedited))

    def _want(self, message: messages.Restore) -> WantedValues:
        def notify(reads: Reads) -> None:
            self._send(FirstValuesCopied(message.transfer, message.session, reads.job, self._memory()))

        return WantedValues(message.reads, notify)

    def _restore(
        self, message: messages.Restore, values: SessionValues, copied: Copied, wanted: WantedValues
    ) -> Iterator[int]:
        if message.manifest is not None:
            self._take_over(message.manifest, message.released, values)
        yield from self._copies.restore(values, copied, wanted)

    def _take_over(self, manifest: bytes, released: Sequence[int], values: SessionValues) -> None:
        tiers = self._copies.tiers
        with tiers.fences.lock:
            if values.closed:
                raise SessionGone
            if values.parked is not None:
                return  # this process has it
            if values.tensors:
                raise TransferProblem("it is on the device already")
            try:
                parking.arrive(values, read_manifest(manifest, self._copies.link.fingerprints, tiers.store))
            except ValueError as error:
                raise TransferProblem(str(error)) from error
            values.release(released)

    def _evict(self, message: messages.Evict, values: SessionValues) -> Copied:
        """Evict a session; with a new manifest, where the last one is older than the state here."""
        if values.running or values.unanswered:
            raise TransferProblem("it runs")
        if values.arriving:
            raise TransferProblem("it is being restored")
        fences = self._copies.tiers.fences
        for storage in list(values.storages.values()):
            fences.wait_for_readers(storage)
        if message.discard:
            parking.discard(values, "its memory was given to other sessions")
            return Copied()
        if values.state != "resident":
            raise TransferProblem("it is not on the device")
        if values.unstored_bytes:
            raise TransferProblem(f"{format_bytes(values.unstored_bytes)} of it are not stored")
        copied = Copied(message.transfer)
        if not values.described:
            self._copies.describe(message.session, values, copied)
        parking.park(values)
        return copied

    def _forget(self, values: SessionValues) -> Copied:
        if values.state != "resident" or values.arriving:
            raise TransferProblem("it is not on the device, so its copy on the host is the only one")
        parking.forget_stored(values)
        values.described = False
        return Copied()

    def _at_once(
        self,
        message: messages.Evict | messages.Forget,
        kind: messages.TransferKind,
        act: Callable[[], Copied],
    ) -> None:
        job = LaneTask(message.transfer, iter(()), lambda job, problem: None, expedited=True)
        problem: Exception | None = None
        copied = Copied()
        with self._copies.tiers.fences.lock:
            try:
                copied = act()
            except TransferProblem as error:
                problem = error
        self._send(self._result(job, message.session, kind, copied, problem))

    def _result(
        self,
        job: LaneTask,
        session: str,
        kind: messages.TransferKind,
        copied: Copied,
        problem: Exception | None,
    ) -> Answer:
        memory = self._memory()
        if problem is None:
            return CopyDone(
                job.transfer,
                session,
                kind,
                memory,
                copied.nbytes,
                job.busy_s,
                job.queued_s,
                copied.checked_pieces,
                copied.whole,
                copied.manifest,
                copied.serial,
                copied.values,
            )
        if isinstance(problem, TransferProblem):
            return CopyFailed(
                job.transfer, session, kind, problem.reason, memory, problem.full, problem.mismatch
            )
        log.error("%s of session %s failed", kind, session, exc_info=problem)
        if is_accelerator(self._copies.device) and fault_of(self._copies.device) is not None:
            os._exit(DEVICE_FAULT)  # what it holds is gone: another process restores the sessions
        reason = f"{type(problem).__name__}: {problem}"
        return CopyFailed(job.transfer, session, kind, reason, memory)
