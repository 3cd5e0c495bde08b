"""The local launcher: a worker process for each device, spoken to over a socket pair, watched, restarted.

A dead worker closes its end of the pair, which is seen at once. It is started again after a back-off that
doubles with every death and is forgotten after a minute of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from djinn_lab.pool.blobs.directory import RESULTS, STORE
from djinn_lab.pool.devices.launcher import WorkerEvents, WorkerHealth
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.pings import PING_EVERY_S, Liveness, Pings
from djinn_lab.protocol.worker import (
    FRAME_BYTES_MAX,
    Cancel,
    CopyDone,
    CopyFailed,
    CopyOrder,
    Ping,
    Pong,
    Preempt,
    RunOrder,
    Shutdown,
    ToWorker,
    WorkerReady,
    decode_from_worker,
    encode,
)

WORKER_COMMAND = (sys.executable, "-m", "djinn_lab.worker")
RESTART_DELAY_MIN_S = 0.1
RESTART_DELAY_MAX_S = 30.0
HEALTHY_AFTER_S = 60.0
DEATHS_BEFORE_READY_MAX = 3
STOP_GRACE_S = 1.5
LENGTH = struct.Struct(">I")

log = logging.getLogger(__name__)


class Worker:
    """Track one device's process over all its restarts. ``restarts`` counts the lives before this one."""

    def __init__(self, plan: DevicePlan) -> None:
        self.plan = plan
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None
        self.transport: asyncio.Transport | None = None
        self.spawned_at_s = 0.0
        self.restarts = 0
        self.deaths_in_a_row = 0
        self.deaths_before_ready = 0
        self.ready = False
        self.pings = Pings()


class LocalLauncher:
    """Run the workers of this machine's devices as processes. See
    :class:`~djinn_lab.pool.devices.launcher.Launcher`.

    ``blob_directory``: of :mod:`djinn_lab.pool.blobs.store`. ``host_directory``, ``disk_directory``: where
    workers park sessions; None where no plan has such a tier.
    """

    def __init__(
        self,
        blob_directory: Path,
        worker_command: Sequence[str] = WORKER_COMMAND,
        host_directory: Path | None = None,
        disk_directory: Path | None = None,
    ) -> None:
        self._blob_directory = blob_directory
        self._host_directory = host_directory
        self._disk_directory = disk_directory
        self._command = tuple(worker_command)
        self._workers: dict[str, Worker] = {}
        self._events: WorkerEvents | None = None
        self._orphans = OrphanedFiles([path for path in (host_directory, disk_directory) if path is not None])
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    # -- the interface -------------------------------------------------------------------------------------

    def spawn(self, plan: DevicePlan, events: WorkerEvents) -> None:
        self.warm(plan)
        self._events = events
        worker = self._workers[plan.device]
        task = asyncio.get_running_loop().create_task(self._live(worker, events), name=plan.device)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def run(self, device: str, order: RunOrder) -> None:
        self._send(device, order)

    def copy(self, device: str, order: CopyOrder) -> None:
        self._send(device, order)
        self._sweep()

    def cancel(self, device: str, job: str) -> None:
        self._send(device, Cancel(job))

    def preempt(self, device: str, job: str, segment: int) -> None:
        self._send(device, Preempt(job, segment))

    def health(self, device: str) -> WorkerHealth:
        worker = self._workers[device]
        process = worker.process
        if process is None or process.returncode is not None:
            return WorkerHealth(False, worker.restarts)
        return WorkerHealth(True, worker.restarts, {"pid": process.pid}, not worker.pings.silent)

    async def close(self, at_once: bool = False) -> None:
        self._stopping = True
        if at_once:
            self.kill()
        else:
            for device in self._workers:
                self._send(device, Shutdown())
        processes = [worker.process for worker in self._workers.values() if worker.process is not None]
        await asyncio.gather(*(asyncio.to_thread(_wait_or_kill, process) for process in processes))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in processes:
            self._orphans.died(process.pid)
        self._orphans.sweep(())

    # -- for the pool's process, outside its event loop ------------------------------------------------------

    def warm(self, plan: DevicePlan) -> None:
        """Start a device's process before :meth:`spawn`, so that it loads while the server does."""
        if plan.device not in self._workers:
            worker = self._workers[plan.device] = Worker(plan)
            self._start(worker)

    def kill(self) -> None:
        """End every worker at once, for good."""
        self._stopping = True
        for worker in self._workers.values():
            if worker.process is not None and worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()

    # -- parts ---------------------------------------------------------------------------------------------

    def _send(self, device: str, message: ToWorker) -> None:
        transport = self._workers[device].transport
        if transport is None or transport.is_closing():
            return
        body = encode(message)
        transport.write(LENGTH.pack(len(body)) + body)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s is no longer watched", task.get_name(), exc_info=task.exception())

    def _start(self, worker: Worker) -> None:
        plan = worker.plan
        ours, theirs = socket.socketpair()
        arguments = ["--fd", str(theirs.fileno()), "--device", plan.device]
        arguments += ["--memory-bytes", str(plan.memory_bytes), "--threads", str(plan.threads)]
        arguments += ["--store-directory", str(self._blob_directory / STORE)]
        arguments += ["--result-directory", str(self._blob_directory / RESULTS)]
        arguments += ["--link-bytes-per-second", str(plan.link_bytes_per_s)]
        if self._host_directory is not None and plan.host_bytes:
            arguments += ["--host-bytes", str(plan.host_bytes), "--host-directory", str(self._host_directory)]
        if self._disk_directory is not None and plan.disk_bytes:
            arguments += ["--disk-bytes", str(plan.disk_bytes), "--disk-directory", str(self._disk_directory)]
        with theirs:
            worker.process = subprocess.Popen(
                [*self._command, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": str(plan.threads)},
            )
        worker.connection = ours
        worker.spawned_at_s = time.monotonic()
        worker.ready = False
        worker.pings = Pings()

    async def _live(self, worker: Worker, events: WorkerEvents) -> None:
        """Keep one device's process alive: listen, and restart it when it dies."""
        device = worker.plan.device
        while not self._stopping:
            await self._listen(worker, events)
            assert worker.process is not None
            how = await asyncio.to_thread(_describe_death, worker.process)
            if self._stopping:
                return
            log.error("%s: the worker process %s", device, how)
            self._orphans.died(worker.process.pid)
            self._report_death(worker, how, events)
            self._sweep()
            if time.monotonic() - worker.spawned_at_s > HEALTHY_AFTER_S:
                worker.deaths_in_a_row = 0
            delay_s = min(RESTART_DELAY_MAX_S, RESTART_DELAY_MIN_S * 2**worker.deaths_in_a_row)
            worker.deaths_in_a_row += 1
            await asyncio.sleep(delay_s)
            if not self._stopping:
                worker.restarts += 1
                self._start(worker)

    def _report_death(self, worker: Worker, how: str, events: WorkerEvents) -> None:
        device = worker.plan.device
        was_ready, worker.ready = worker.ready, False
        if was_ready:
            worker.deaths_before_ready = 0
            events.worker_died(device, how)
            return
        worker.deaths_before_ready += 1
        if worker.deaths_before_ready >= DEATHS_BEFORE_READY_MAX:
            events.worker_failed(device, how)

    async def _listen(self, worker: Worker, events: WorkerEvents) -> None:
        """Hand over every message until the connection ends."""
        assert worker.connection is not None

        def on_frame(frame: bytes) -> None:
            message = decode_from_worker(frame)
            worker.ready = worker.ready or isinstance(message, WorkerReady)
            if worker.pings.heard() is Liveness.HEARD:
                log.warning("%s: the worker answers again", worker.plan.device)
                events.worker_heard(worker.plan.device, True)
            if isinstance(message, Pong):
                return
            events.worker_said(worker.plan.device, message)
            if isinstance(message, CopyDone | CopyFailed):
                self._sweep()

        frames = Frames(on_frame)
        loop = asyncio.get_running_loop()
        worker.transport, _ = await loop.create_connection(lambda: frames, sock=worker.connection)
        pinging = loop.create_task(self._ping(worker, events))
        try:
            await frames.ended
        except msgspec.DecodeError as error:
            log.error("%s: the worker sent what is not a message: %s", worker.plan.device, error)
            self._kill(worker)
        finally:
            pinging.cancel()
            transport, worker.transport = worker.transport, None
            transport.close()
            await frames.closed

    async def _ping(self, worker: Worker, events: WorkerEvents) -> None:
        """Report a worker that does not answer, and end one that does not for long."""
        device = worker.plan.device
        while True:
            await asyncio.sleep(PING_EVERY_S)
            if not worker.ready:
                continue
            verdict = worker.pings.pinged()
            if verdict is Liveness.SILENT:
                log.warning("%s: the worker does not answer", device)
                events.worker_heard(device, False)
            elif verdict is Liveness.HUNG:
                log.error("%s: the worker is hung, and is ended", device)
                self._kill(worker)
            self._send(device, Ping())

    def _sweep(self) -> None:
        """Remove what dead workers parked and no manifest names any more."""
        if self._events is not None:
            self._orphans.sweep(self._events.manifests())

    def _kill(self, worker: Worker) -> None:
        if worker.process is not None:
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()


def _describe_death(process: subprocess.Popen[bytes]) -> str:
    """Wait for the exit (a worker that closed its connection has no business left) and say how it went."""
    code = _wait_or_kill(process)
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def _wait_or_kill(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(timeout=STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Frames(asyncio.Protocol):
    """``on_frame`` is given every frame as it comes. ``ended`` is done when no more will come, with what
    ``on_frame`` raised, if anything; ``closed`` when the connection is."""

    def __init__(self, on_frame: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_frame = on_frame
        self._arrived = bytearray()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        try:
            while not self.ended.done() and (frame := self._next()) is not None:
                self._on_frame(frame)
        except Exception as error:  # noqa: BLE001 - what waits for the end gets it
            self.ended.set_exception(error)

    def _next(self) -> bytes | None:
        arrived = self._arrived
        if len(arrived) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(arrived)
        if length > FRAME_BYTES_MAX:
            raise msgspec.DecodeError(f"a frame of {length} bytes")
        end = LENGTH.size + length
        if len(arrived) < end:
            return None
        with memoryview(arrived) as view:
            frame = bytes(view[LENGTH.size : end])
        del arrived[:end]
        return frame

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self.closed.set_result(None)


class OrphanedFiles:
    """``directories``: where workers park sessions. Their files' names hold the process's number."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._files: set[Path] = set()

    def died(self, pid: int) -> None:
        """Note the files of a dead worker."""
        for directory in self._directories:
            self._files.update(directory.glob(f"*-{pid}.*"), directory.glob(f"*-{pid}-*"))

    def sweep(self, manifests: Iterable[bytes]) -> None:
        """Remove those that no manifest names."""
        if not self._files:
            return
        needed = list(manifests)
        for path in list(self._files):
            name = str(path).encode()
            if not any(name in manifest for manifest in needed):
                path.unlink(missing_ok=True)
                self._files.discard(path)
