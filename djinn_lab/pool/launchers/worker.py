"""One life of a worker, as the launcher sees it: a process, a connection, and the sessions that it has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from djinn_lab.pool.launchers.frames import Frames, framed
from djinn_lab.pool.launchers.leases import Leases
from djinn_lab.pool.launchers.merged import NOTHING, Reporting
from djinn_lab.pool.launchers.named_files import made_files
from djinn_lab.pool.launchers.pings import Pings
from djinn_lab.pool.launchers.processes import Process, Starter
from djinn_lab.pool.launchers.stops import Stops
from djinn_lab.protocol.template import WorkerOptions
from djinn_lab.protocol.worker import (
    FromWorker,
    Ping,
    RegionCompiled,
    ReleaseHost,
    ToWorker,
    WorkerMemory,
    decode_from_worker,
    encode,
)


class Worker:
    """``leases``: of its device. ``group``: the trust group whose sessions it has, None while it may become
    any's. ``sessions``: those that it was given and has not closed. ``closing``: those of them that it was
    told to close, once what they run has ended. ``results``: files of which it
    has told, and perhaps more that are gone. ``leaving``: it was asked to end. ``why``: the pool ended it."""

    def __init__(self, options: WorkerOptions, group: str | None, leases: Leases) -> None:
        self.options = options
        self._leases = leases
        self._share = leases.join(self._write)
        self.group = group
        self.sessions: set[str] = set()
        self.closing: set[str] = set()
        self.memory: WorkerMemory = NOTHING
        self.results: set[str] = set()
        self.process: Process | None = None
        self.ready = False
        self.leaving = False
        self.why = ""
        self.pings = Pings()
        self.stops = Stops()
        self.started_s = 0.0
        self._connection: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._waiting: list[ToWorker] = []
        self._ended = False

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def pid(self) -> int:
        """The number of its process, which is known while the worker is alive."""
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    def start(self, starter: Starter, now_s: float) -> None:
        """Start the process; what is sent meanwhile waits for it."""
        self._connection, theirs = socket.socketpair()
        with theirs:
            self.process = starter.start(self.options, theirs)
        self.started_s = now_s

    def send(self, message: ToWorker) -> None:
        """Send a message, once the worker is there and has a lease for it. One to a worker that was lost has
        no effect."""
        if self._transport is not None:
            self._leases.order(self._share, message)
        elif not self._ended:
            self._waiting.append(message)

    def ping(self) -> None:
        """Send a ping at once, before what waits for a lease."""
        self._write(Ping())

    def tell(self, message: RegionCompiled | ReleaseHost) -> None:
        """Send at once what takes no lease."""
        self._write(message)

    def said(self, message: FromWorker) -> None:
        """Note what the worker said, and its memory unless a later report came before this one."""
        self.results.update(made_files(message))
        if isinstance(message, Reporting) and message.memory.number >= self.memory.number:
            self.memory = message.memory
        self.stops.said(message)
        self._leases.said(self._share, message, self.memory)

    def leave(self) -> None:
        """Give up its lease: its process has ended, or is about to."""
        self._leases.leave(self._share)

    def _write(self, message: ToWorker) -> None:
        self.stops.sent(message)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(encode(message)))

    async def listen(self, take: Callable[[FromWorker], None]) -> None:
        """Hand over every message until the connection ends. Raises msgspec.DecodeError for what is none, and
        what ``take`` raises."""
        assert self._connection is not None
        frames = Frames(lambda frame: take(decode_from_worker(frame)))
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: frames, sock=self._connection)
        self._transport = transport
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.send(message)
        try:
            await frames.ended
        finally:
            self._ended, self._transport = True, None
            transport.close()
            await frames.closed

    def kill(self, why: str = "") -> None:
        """``why``: said of its end in place of the signal."""
        self.why = why
        if self.process is not None:
            self.process.kill()
