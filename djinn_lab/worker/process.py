"""The worker process: a reader thread takes messages (so that a cancel is seen in mid-run), the main
thread runs them."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import msgspec
import torch

from djinn_lab.protocol import worker as messages
from djinn_lab.protocol.isolation import SandboxLevel
from djinn_lab.worker import numa, tier_service
from djinn_lab.worker.accelerator import graphs
from djinn_lab.worker.accelerator.device import (
    DEVICE_FAULT,
    is_accelerator,
    name_of,
)
from djinn_lab.worker.accelerator.link import AcceleratorLink
from djinn_lab.worker.batched.batches import Batches
from djinn_lab.worker.batched.batches import Given as BatchMember
from djinn_lab.worker.compiled.libraries import Libraries, Loader
from djinn_lab.worker.compiled.programs import CompiledPrograms
from djinn_lab.worker.executor import find_executor
from djinn_lab.worker.framing import FrameReader, send_frame
from djinn_lab.worker.heap import Heap
from djinn_lab.worker.host_arena import HostArena
from djinn_lab.worker.inbox import Given, GivenBatch, Inbox, Item
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.lease import DeviceLease
from djinn_lab.worker.link import CpuLink
from djinn_lab.worker.measuring import Measuring
from djinn_lab.worker.outcome import Outcome, Stop, StopSignal
from djinn_lab.worker.pieces import PieceStore
from djinn_lab.worker.templates import lacking_ops
from djinn_lab.worker.tier_service import TierService
from djinn_lab.worker.tiers import TierLimits, Tiers
from djinn_lab.worker.values import SessionValues

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.2
TRIM_AFTER_S = 5.0
"""Of idleness."""


class WorkerProcess:
    """``store``: the directory of uploaded blobs. ``results``: where what is fetched or handed on goes.
    ``compiled``: where the libraries of compiled regions lie; None: nothing is compiled. ``loader``: of
    what compiles them; None: regions are recorded instead."""

    def __init__(
        self,
        connection: socket.socket,
        device: str,
        memory_bytes: int,
        store: Path,
        results: Path,
        limits: TierLimits | None = None,
        sandbox: SandboxLevel = "none",
        compiled: Path | None = None,
        *,
        loader: Loader | None,
    ) -> None:
        self._connection = connection
        self._sandbox = sandbox
        self._name = device
        self._device = torch.device("cpu" if device.startswith("cpu") else device)
        self._limits = limits = limits or TierLimits()
        self._is_accelerator = is_accelerator(self._device)
        arena = HostArena(
            limits.host_bytes,
            limits.host_directory,
            device,
            registered_with=self._device if self._is_accelerator else None,
            account=limits.host_account,
        )
        tiers = Tiers(PieceStore(arena, limits.disk_bytes, limits.disk_directory))
        self._store = str(store)
        link = (
            AcceleratorLink(self._device) if self._is_accelerator else CpuLink(limits.link_bytes_per_second)
        )
        self._measuring = Measuring(self._device, self._send)
        self._heap = Heap(find_executor(), self._device, memory_bytes)
        self._trimmed = True
        self._interpreter = Interpreter(self._device, memory_bytes, results, tiers, link=link)
        self._interpreter.memory.heap = self._heap
        self._interpreter.memory.drop_other = self._measuring.begin_anew
        self._interpreter.copies.want_host = self._want_host
        self._batches = Batches(self._interpreter)
        record = None if loader else graphs.recorder(self._device)
        libraries = Libraries(compiled, self._device, self._send, loader, record)
        self._compiled = CompiledPrograms(self._interpreter, libraries)
        self._link_bytes_per_s = link.bytes_per_second
        self._sending = threading.Lock()
        self._tiers = TierService(
            self._interpreter.copies,
            self._interpreter.values_of,
            self._memory,
            self._send,
        )
        self._memory_bytes = memory_bytes
        self._inbox = Inbox()
        self._pausable: StopSignal | None = None
        """Of the run that lets others run between two of its ops."""
        self._given: dict[str, Given] = {}
        self._lease = DeviceLease(
            *(self._device, self._interpreter.memory, self._heap, self._measuring),
            busy=lambda: bool(self._given),
            send=self._send,
        )

    def serve(self) -> None:
        """Until the pool closes the connection or says shutdown."""
        threading.Thread(target=self._read, daemon=True).start()
        self._send(self._ready())
        while True:
            message = self._next()
            if message is None or isinstance(message, messages.Shutdown):
                self._tiers.stop()
                return
            if isinstance(message, Given) and not (message.message.watched or message.message.tolerance):
                self._run_pausable(message)
            elif isinstance(message, Given):
                self._run(message)
            elif isinstance(message, GivenBatch):
                self._run_batch(message)
            elif isinstance(message, messages.Release):
                self._release(message)
            elif isinstance(message, messages.Close):
                self._interpreter.close(message.session)
                self._send(messages.Closed(message.session, self._memory()))
            elif isinstance(message, messages.RegionCompiled):
                self._compiled.answered(message)
            elif isinstance(message, messages.Calibrate):
                self._measuring.begin()
                self._lease.limit_reserved()

    def _next(self) -> Item:
        """Wait for the next message; measure the device meanwhile, where that was asked for, and return
        memory that was not used for a while."""
        while self._measuring.under_way and self._inbox.empty:
            if self._measuring.step():
                self._measured()
        if not self._trimmed:
            try:
                return self._inbox.get(TRIM_AFTER_S)
            except TimeoutError:
                self._heap.trim()
                self._trimmed = True
        return self._inbox.get()

    def _measured(self) -> None:
        if self._is_accelerator:
            self._heap.trim()
            self._lease.limit_reserved()

    def _read(self) -> None:
        frames = FrameReader(self._connection)
        while True:
            frame = frames.next()
            if frame is None:
                self._inbox.put(None)
                return
            message = messages.decode_to_worker(frame)
            if isinstance(message, messages.RunSegment):
                given = self._given[message.job] = Given(message)
                self._inbox.put(given)
                pausable = self._pausable
                if message.interleaved and pausable is not None:
                    pausable.ask_to_pause()
            elif isinstance(message, messages.RunBatch):
                members = tuple(Given(one) for one in message.segments)
                self._given |= {given.message.job: given for given in members}
                self._inbox.put(GivenBatch(message.structure, members))
            elif isinstance(message, messages.Cancel | messages.Preempt):
                self._ask_to_stop(message)
            elif isinstance(message, messages.Ping):
                self._send(messages.Pong())
            elif isinstance(message, messages.ReleaseHost):
                self._interpreter.tiers.release_host(message.nbytes, message.copies)
            elif isinstance(message, messages.Lease):
                self._lease.change(message.limit_bytes)
            elif isinstance(message, messages.Drop):
                self._interpreter.drop_parked(message.session)
                self._send(messages.Closed(message.session, self._memory()))
            elif isinstance(message, tier_service.MESSAGES):
                self._tiers.handle(message)
            else:
                self._inbox.put(message)

    def _want_host(self, nbytes: int, copies: bool) -> None:
        self._send(messages.HostWanted(nbytes, copies))

    def _ask_to_stop(self, message: messages.Cancel | messages.Preempt) -> None:
        """Ask a segment to stop; a segment that has been answered is ignored."""
        given = self._given.get(message.job)
        if given is None:
            return
        if isinstance(message, messages.Cancel):
            given.stop.ask("cancelled")
        elif given.message.segment == message.segment:
            given.stop.ask("preempted")

    def _release(self, message: messages.Release) -> None:
        self._interpreter.release(message.session, message.values, message.serial)
        self._send(messages.Released(message.session, self._memory()))

    def _run_pausable(self, given: Given) -> None:
        """Run a segment, and others between two of its ops."""
        given.stop.others = self._run_interleaved
        self._pausable = given.stop
        if self._inbox.interleaved:
            given.stop.ask_to_pause()
        try:
            self._run(given)
        finally:
            self._pausable = None

    def _run_interleaved(self) -> None:
        """Run what waits to run between two ops."""
        taken = self._inbox.take_interleaved()
        if not taken:
            return
        with self._interpreter.between_ops():
            for item in taken:
                if isinstance(item, Given):
                    self._run(item)
                else:
                    self._release(item)

    def _run(self, given: Given) -> None:
        message = given.message
        values = self._interpreter.values_of(message.session)

        def announce_op() -> Stop | None:
            transient = values.transient
            if transient is not None:
                self._send(messages.SegmentProgress(message.job, message.segment, transient.executed, 0))
            return given.stop()

        values.await_answer()
        blobs, report = self._blobs_of(message), self._report_of(message)
        should_stop = announce_op if message.watched else given.stop
        if message.tolerance > 0:
            outcome = self._compiled.run(message, blobs, should_stop, report)
        else:
            outcome = self._interpreter.run_segment(message, blobs, should_stop, report)
        self._end(given, outcome, values)
        if message.tolerance > 0:
            self._compiled.after_run(message, outcome)

    def _run_batch(self, batch: GivenBatch) -> None:
        sessions = [self._interpreter.values_of(one.message.session) for one in batch.segments]
        for values in sessions:
            values.await_answer()
        members = [
            BatchMember(one.message, self._blobs_of(one.message), one.stop, self._report_of(one.message))
            for one in batch.segments
        ]
        for number, outcome in self._batches.run(batch.structure, members):
            self._end(batch.segments[number], outcome, sessions[number])

    def _end(self, given: Given, outcome: Outcome, values: SessionValues) -> None:
        """Answer a segment. A device that has failed computes nothing more, so the process ends; the pool
        starts another one, where a segment that was under way is watched from op to op to find the one at
        fault."""
        self._trimmed = False
        failed = outcome.failure is not None and (
            outcome.failure.type_name == torch.AcceleratorError.__name__
        )
        if failed and not given.message.watched:
            os._exit(DEVICE_FAULT)
        if self._given.get(given.message.job) is given:
            del self._given[given.message.job]
        answer = self._answer(given.message, outcome)
        with values.answering():
            self._send(answer)
        if failed:
            os._exit(DEVICE_FAULT)
        if self._heap.worn_out(self._interpreter.memory.used_bytes):
            self._send(messages.WornOut(self._heap.held_bytes(), self._heap.limit_bytes))

    def _blobs_of(self, message: messages.RunSegment) -> dict[str, str]:
        return {name: f"{self._store}/{blob}" for name, blob in message.blobs.items()}

    def _report_of(self, message: messages.RunSegment) -> Callable[[int, int], None]:
        """Return what reports a segment's progress, some times a second."""
        sent_at = 0.0

        def report(done: int, total: int) -> None:
            nonlocal sent_at
            now = perf_counter()
            if done == 0:
                sent_at = now
                if message.announces_start:
                    self._send(messages.SegmentStarted(message.job, message.segment, total))
            elif now - sent_at > PROGRESS_INTERVAL_S:
                sent_at = now
                self._send(messages.SegmentProgress(message.job, message.segment, done, total))

        return report

    def _answer(self, message: messages.RunSegment, outcome: Outcome) -> messages.FromWorker:
        memory = self._memory()
        if outcome.failure is not None:
            return messages.SegmentFailed(
                message.job, message.segment, outcome.failure, outcome.executed, memory, outcome.rng_state
            )
        if outcome.stopped == "preempted":
            return messages.RunPreempted(
                job=message.job,
                segment=message.segment,
                executed=outcome.executed,
                ops_total=outcome.ops_total,
                rng_state=outcome.rng_state,
                if_given_up=outcome.if_given_up,
                node_times=outcome.node_times,
                load_s=outcome.load_s,
                run_s=outcome.run_s,
                memory=memory,
                undone=outcome.undone,
                out_bytes=outcome.out_bytes,
                in_bytes=outcome.in_bytes,
                ahead_bytes=outcome.ahead_bytes,
            )
        if outcome.stopped is not None:
            return messages.SegmentCancelled(message.job, message.segment, outcome.executed, memory)
        return messages.SegmentDone(
            job=message.job,
            segment=message.segment,
            fetched=outcome.fetched,
            dynamic_metas=outcome.dynamic_metas,
            rng_state=outcome.rng_state,
            node_times=outcome.node_times,
            load_s=outcome.load_s,
            run_s=outcome.run_s,
            fetch_s=outcome.fetch_s,
            memory=memory,
            exported=outcome.exported,
            out_bytes=outcome.out_bytes,
            in_bytes=outcome.in_bytes,
            ahead_bytes=outcome.ahead_bytes,
            compiled=outcome.compiled,
            compiled_ops=outcome.compiled_ops,
            batched_with=outcome.batched_with,
        )

    def _memory(self) -> messages.WorkerMemory:
        return msgspec.structs.replace(memory_report(self._interpreter), held_bytes=self._heap.held_bytes())

    def _ready(self) -> messages.WorkerReady:
        name = name_of(self._device) if self._is_accelerator else _processor_name()
        return messages.WorkerReady(
            device=self._name,
            kind=self._device.type,
            name=name,
            memory_bytes=self._memory_bytes,
            threads=torch.get_num_threads(),
            torch_version=str(torch.__version__),
            host_bytes=self._limits.host_bytes,
            disk_bytes=self._limits.disk_bytes,
            link_bytes_per_s=self._link_bytes_per_s,
            numa_node=numa.node_of(self._device),
            sandbox=self._sandbox,
            lacking_ops=lacking_ops(),
        )

    def _send(self, message: messages.FromWorker) -> None:
        body = messages.encode(message)
        with self._sending:
            send_frame(self._connection, body)


def _processor_name() -> str:
    """Return what the machine says of its processor; "CPU" where it does not let a process read that."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "CPU"


def memory_report(interpreter: Interpreter) -> messages.WorkerMemory:
    """Called from several threads; sessions that are not on the device have none of the last three."""
    account, tiers = interpreter.memory, interpreter.tiers
    with tiers.fences.lock:
        by_session: dict[str, int] = {}
        kv, unstored, ready, weights = dict[str, int](), dict[str, int](), dict[str, int](), dict[str, int]()
        offloaded = dict[str, int]()
        for name, values in list(interpreter.sessions.items()):
            by_session[name] = values.nbytes
            if values.kv_bytes:
                kv[name] = values.kv_bytes
            if left := values.unstored_bytes:
                unstored[name] = left
            if values.ready_bytes:
                ready[name] = values.ready_bytes
            if part := values.weight_bytes:
                weights[name] = part
            if away := values.offloaded_bytes:
                offloaded[name] = away
        held = sum(by_session.values()) + tiers.weights.shared_bytes  # a program may run on meanwhile
        used = max(account.used_bytes, held)
        return messages.WorkerMemory(
            used_bytes=used,
            peak_bytes=max(account.peak_bytes, used),
            session_bytes=by_session,
            shared_bytes=tiers.weights.shared_bytes,
            kv_bytes=kv,
            unstored_bytes=unstored,
            ready_bytes=ready,
            weight_bytes=weights,
            offloaded_bytes=offloaded,
            host_bytes=tiers.store.host_used_bytes,
            disk_bytes=tiers.store.disk_used_bytes,
            on_disk_bytes=dict(tiers.store.on_disk_bytes),
            number=next(interpreter.reports),
        )
