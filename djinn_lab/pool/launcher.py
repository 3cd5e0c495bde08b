"""The local engine: one worker process per device, spawned, spoken to over a socket pair, watched, restarted.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from djinn_lab.pool.blob_directory import RESULTS, STORE
from djinn_lab.pool.devices import DevicePlan
from djinn_lab.protocol.worker import (
    FRAME_BYTES_MAX,
    FromWorker,
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


class Frames(asyncio.Protocol):
    """``heard`` is given every frame as it comes. ``ended`` is done when no more will come, with what
    ``heard`` raised, if anything; ``closed`` when the connection is."""

    def __init__(self, heard: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self._heard = heard
        self._arrived = bytearray()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        try:
            while not self.ended.done() and (frame := self._next()) is not None:
                self._heard(frame)
        except Exception as error:  # noqa: BLE001 - whoever waits for the end gets it
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


class Owner(Protocol):
    """Who hears from the workers."""

    def worker_said(self, device: str, message: FromWorker) -> None: ...

    def worker_died(self, device: str, how: str) -> None: ...

    def worker_failed(self, device: str, how: str) -> None:
        """It never became ready, several times over."""


class Worker:
    """One device's process, over all its lives. ``restarts`` counts the lives before this one."""

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


class LocalLauncher:
    """``spawn`` may be called before the event loop runs, so that workers load while the server does.
    ``host_directory``, ``disk_directory``: where workers park sessions; None where no plan has such a
    tier."""

    def __init__(
        self,
        plans: Sequence[DevicePlan],
        blob_directory: Path,
        worker_command: Sequence[str] = WORKER_COMMAND,
        host_directory: Path | None = None,
        disk_directory: Path | None = None,
    ) -> None:
        self._blob_directory = blob_directory
        self._host_directory = host_directory
        self._disk_directory = disk_directory
        self._command = tuple(worker_command)
        self._workers = {plan.device: Worker(plan) for plan in plans}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def plans(self) -> list[DevicePlan]:
        return [worker.plan for worker in self._workers.values()]

    @property
    def parked_directories(self) -> list[Path]:
        """Where workers park sessions."""
        return [path for path in (self._host_directory, self._disk_directory) if path is not None]

    def spawn(self) -> None:
        """Start every worker's process."""
        for worker in self._workers.values():
            self._spawn(worker)

    def watch(self, owner: Owner) -> None:
        """Listen to all workers from now on; call inside the running event loop."""
        for worker in self._workers.values():
            task = asyncio.get_running_loop().create_task(self._live(worker, owner), name=worker.plan.device)
            self._tasks.add(task)
            task.add_done_callback(self._forget)

    def send(self, device: str, message: ToWorker) -> bool:
        """Queue a frame; False when the worker is down."""
        transport = self._workers[device].transport
        if transport is None or transport.is_closing():
            return False
        body = encode(message)
        transport.write(LENGTH.pack(len(body)) + body)
        return True

    def pid(self, device: str) -> int | None:
        process = self._workers[device].process
        return process.pid if process is not None and process.returncode is None else None

    def restarts(self, device: str) -> int:
        return self._workers[device].restarts

    async def stop(self) -> None:
        """Ask every worker to leave, then make it."""
        self._stopping = True
        for device in self._workers:
            self.send(device, Shutdown())
        processes = [worker.process for worker in self._workers.values() if worker.process is not None]
        waiting = [asyncio.to_thread(_wait_or_kill, process) for process in processes]
        await asyncio.gather(*waiting)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self) -> None:
        """End every worker at once, for good, without a loop."""
        self._stopping = True
        for worker in self._workers.values():
            if worker.process is not None and worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s is no longer watched", task.get_name(), exc_info=task.exception())

    def _spawn(self, worker: Worker) -> None:
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

    async def _live(self, worker: Worker, owner: Owner) -> None:
        """All the lives of one device's process."""
        device = worker.plan.device
        while not self._stopping:
            await self._listen(worker, owner)
            how = await asyncio.to_thread(_describe_death, worker.process)
            if self._stopping:
                return
            was_ready, worker.ready = worker.ready, False
            log.error("%s: the worker process %s", device, how)
            if was_ready:
                owner.worker_died(device, how)
                worker.deaths_before_ready = 0
            else:
                worker.deaths_before_ready += 1
                if worker.deaths_before_ready >= DEATHS_BEFORE_READY_MAX:
                    owner.worker_failed(device, how)
            if time.monotonic() - worker.spawned_at_s > HEALTHY_AFTER_S:
                worker.deaths_in_a_row = 0
            delay_s = min(RESTART_DELAY_MAX_S, RESTART_DELAY_MIN_S * 2**worker.deaths_in_a_row)
            worker.deaths_in_a_row += 1
            await asyncio.sleep(delay_s)
            if not self._stopping:
                worker.restarts += 1
                self._spawn(worker)

    async def _listen(self, worker: Worker, owner: Owner) -> None:
        """Hand over every message until the connection ends."""
        assert worker.connection is not None

        def heard(frame: bytes) -> None:
            message = decode_from_worker(frame)
            worker.ready = worker.ready or isinstance(message, WorkerReady)
            owner.worker_said(worker.plan.device, message)

        frames = Frames(heard)
        loop = asyncio.get_running_loop()
        worker.transport, _ = await loop.create_connection(lambda: frames, sock=worker.connection)
        try:
            await frames.ended
        except msgspec.DecodeError as error:
            log.error("%s: the worker sent what is no message: %s", worker.plan.device, error)
            self._kill(worker)
        finally:
            transport, worker.transport = worker.transport, None
            transport.close()
            await frames.closed

    def _kill(self, worker: Worker) -> None:
        if worker.process is not None:
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()


def _describe_death(process: subprocess.Popen[bytes] | None) -> str:
    """Wait for the exit (a worker that closed its connection has no business left) and say how it went."""
    assert process is not None
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
