"""Processes of workers: how one is started, ended, and found to have ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Protocol

from djinn_lab.pool.launchers.environment import scrubbed
from djinn_lab.protocol.template import WorkerOptions

WORKER_COMMAND = (sys.executable, "-m", "djinn_lab.worker")
STOP_GRACE_S = 1.5


class Process(Protocol):
    """One worker's process."""

    @property
    def pid(self) -> int | None:
        """Its number; None before it is known."""

    @property
    def alive(self) -> bool:
        """Whether it is known, and has not ended."""

    def kill(self) -> None:
        """End it at once, if it has not ended."""

    async def ended(self) -> str:
        """Wait for its end, which is near (a worker that closed its connection has no business left), and
        return how it went."""


class Starter(Protocol):
    """Starts workers. ``start`` does not wait for them."""

    def start(self, options: WorkerOptions, connection: socket.socket) -> Process:
        """Start a worker on its end of a connection, which the caller closes."""

    def attach(self) -> None:
        """Begin to listen, inside the running event loop."""

    def kill(self) -> None:
        """End everything at once, outside the event loop too."""

    async def close(self) -> None:
        """Wait until all workers, which were asked to end, have ended."""


def described(code: int | None) -> str:
    """Return the rest of a sentence about a process that ended with this code; None for an unknown one."""
    if code is None:
        return "ended"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


class Commanded:
    """A worker that is a command of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def wait(self) -> int:
        try:
            return self._process.wait(timeout=STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    async def ended(self) -> str:
        return described(await asyncio.to_thread(self.wait))


class CommandStarter:
    """Start each worker by a command, to which its options are added."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._started: list[Commanded] = []

    def start(self, options: WorkerOptions, connection: socket.socket) -> Process:
        process = subprocess.Popen(
            [*self._command, "--fd", str(connection.fileno()), *options.arguments()],
            pass_fds=[connection.fileno()],
            stdin=subprocess.DEVNULL,
            env=scrubbed(os.environ) | {"OMP_NUM_THREADS": str(options.threads)},
        )
        self._started = [one for one in self._started if one.alive]
        self._started.append(Commanded(process))
        return self._started[-1]

    def attach(self) -> None:
        """Nothing is to be listened to."""

    def kill(self) -> None:
        for one in self._started:
            one.kill()
        for one in self._started:
            one.wait()

    async def close(self) -> None:
        await asyncio.gather(*(one.ended() for one in self._started))
