"""Forks workers from a template process, which is started once and again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time

from djinn_lab.pool.launchers.environment import scrubbed
from djinn_lab.pool.launchers.processes import STOP_GRACE_S, Process, described
from djinn_lab.protocol.template import (
    PACKET_BYTES_MAX,
    Fork,
    Forked,
    FromTemplate,
    WorkerOptions,
    decode_from_template,
    encode,
)

TEMPLATE_COMMAND = (sys.executable, "-m", "djinn_lab.worker.template")
log = logging.getLogger(__name__)

assert sys.platform == "linux"


class ForkedProcess:
    """A worker that was forked, or will be. ``handle``: its pidfd, once it is known."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.handle: int | None = None
        self.code: int | None = None
        self.over = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self.number

    @property
    def alive(self) -> bool:
        return self.number is not None and not self.over.is_set()

    def kill(self) -> None:
        if self.handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def end(self, code: int | None) -> None:
        self.code = code
        self.over.set()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    async def ended(self) -> str:
        try:
            await asyncio.wait_for(self.over.wait(), STOP_GRACE_S)
        except TimeoutError:
            self.kill()
            await self.over.wait()
        return described(self.code)


class TemplateStarter:
    """Start workers as forks of a template process of this pool."""

    def __init__(self) -> None:
        self._template: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._forks = 0
        self._processes: dict[int, ForkedProcess] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False

    def start(self, options: WorkerOptions, connection: socket.socket) -> Process:
        control = self._ensure()
        self._forks += 1
        process = self._processes[self._forks] = ForkedProcess()
        try:
            socket.send_fds(control, [encode(Fork(self._forks, options))], [connection.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            self._template_lost()
        return process

    def attach(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._control is not None:
            self._loop.add_reader(self._control, self._read)

    def kill(self) -> None:
        self._closing = True
        if self._template is not None:
            self._template.kill()
            self._template.wait()
            self._read_all()
        for process in list(self._processes.values()):
            process.kill()
        deadline_s = time.monotonic() + STOP_GRACE_S
        for process in list(self._processes.values()):
            if process.handle is not None:
                select.select([process.handle], [], [], max(0.0, deadline_s - time.monotonic()))
            process.end(None)
        self._processes.clear()

    async def close(self) -> None:
        self._closing = True
        await asyncio.gather(*(process.ended() for process in list(self._processes.values())))
        self._disconnect()
        if self._template is not None:
            template = self._template
            await asyncio.to_thread(template.wait)

    # -- parts ---------------------------------------------------------------------------------------------

    def _ensure(self) -> socket.socket:
        """Return the connection to the template, which is started where there is none."""
        if self._control is not None:
            return self._control
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._template = subprocess.Popen(
                [*TEMPLATE_COMMAND, "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=scrubbed(os.environ),
            )
        self._control = ours
        if self._loop is not None:
            self._loop.add_reader(ours, self._read)
        return ours

    def _read_all(self) -> None:
        """Take what a dead template had said."""
        while self._control is not None:
            self._read()

    def _read(self) -> None:
        assert self._control is not None
        try:
            data, handles, _, _ = socket.recv_fds(self._control, PACKET_BYTES_MAX, 1)
        except ConnectionResetError:
            data, handles = b"", []
        if data:
            self._take(decode_from_template(data), handles)
        else:
            self._template_lost()

    def _take(self, message: FromTemplate, handles: list[int]) -> None:
        process = self._processes[message.number]
        if isinstance(message, Forked):
            process.number, process.handle = message.pid, handles[0]
        else:
            del self._processes[message.number]
            process.end(message.code)

    def _template_lost(self) -> None:
        """What it forked lives on, and its ends are seen by their handles."""
        self._disconnect()
        if not self._closing:
            log.error("the template of workers was lost; the next worker starts another")
        for number, process in list(self._processes.items()):
            if process.handle is None:
                del self._processes[number]
                process.end(None)
            elif self._loop is not None and not self._loop.is_closed():
                self._loop.add_reader(process.handle, self._orphan_ended, number)

    def _orphan_ended(self, number: int) -> None:
        process = self._processes.pop(number)
        assert self._loop is not None
        assert process.handle is not None
        self._loop.remove_reader(process.handle)
        process.end(None)

    def _disconnect(self) -> None:
        if self._control is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None
