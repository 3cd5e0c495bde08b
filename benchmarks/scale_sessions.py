"""Many sessions of a pool that hand in small cells, in a process of its own, so that what it does itself is
not measured as the pool's delay."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection
from time import perf_counter

import torch
from websockets.asyncio.client import ClientConnection, connect

from djinn_lab.capture.recorders import capturing, make_recorder
from djinn_lab.capture.sending.backend import Cut, RunResult
from djinn_lab.protocol import messages
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.srg.program import EncodedProgram

CELL = "cell"
WINDOW = 8
"""Cells that may be on their way to the pool at once, not acknowledged yet."""
VISIT_EVERY_S = 0.05
CONNECTING_MAX = 20
"""Sessions that are opened at once."""


class _Tape:
    """A backend that runs nothing."""

    follow_max = 0

    def __init__(self) -> None:
        self.programs: list[bytes] = []

    def stage(self, data: memoryview) -> str:
        raise AssertionError("the cell's tensors travel with it")

    def release(self, values: Sequence[int]) -> None:
        raise AssertionError("values are released with the next program")

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        self.programs.append(program.data)

    def is_done(self) -> bool:
        return True

    def result(self, cancel: bool = False) -> RunResult:
        return RunResult(0)


def record_cell(ops: int) -> bytes:
    """A program of as many small matrix products, whose last value the session keeps."""
    tape = _Tape()
    recorder = make_recorder(tape)
    with torch.no_grad(), capturing(recorder, CELL, __file__):
        value = torch.ones(16, 16)
        for _ in range(ops):
            value = value @ value
        recorder.finish("cell end")
    return tape.programs[-1]


@dataclass
class Load:
    """What one session or all of them saw. ``acknowledged_s``: from the submit of a cell to the pool's first
    message about it. ``ended``: by outcome."""

    acknowledged_s: list[float] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)


class ManySessions:
    """Open on :meth:`open`. One at a time of ``submit`` and ``ended``."""

    def __init__(self, info: RuntimeInfo, program: bytes) -> None:
        self._info = info
        self._program = program
        self._window = asyncio.Semaphore(WINDOW)
        self._sockets: list[ClientConnection] = []
        self._readers: list[asyncio.Task[None]] = []
        self._sent_s: dict[str, float] = {}
        self._unfinished: set[str] = set()
        self._ends: dict[str, asyncio.Event] = {}
        """Of cells whose session waits for them."""
        self._end = asyncio.Event()
        self._acknowledgement = asyncio.Event()
        self.load = Load()

    async def open(self, sessions: int) -> None:
        turn = asyncio.Semaphore(CONNECTING_MAX)
        await asyncio.gather(*(self._open_one(number, turn) for number in range(sessions)))

    async def submit(self, cells: int) -> None:
        """As many of every session, one session after the other, and wait until all are acknowledged."""
        self.load = Load()
        for _ in range(cells):
            for socket in self._sockets:
                await self._hand_in(socket)
        while self._sent_s:
            await self._acknowledgement.wait()
            self._acknowledgement.clear()

    async def ended(self) -> None:
        """Wait until no cell is left. Meanwhile one session after the other hands in one more."""
        self.load.acknowledged_s = []
        submitted = frozenset(self._unfinished)
        visitors = asyncio.create_task(self._visit())
        while not self._unfinished.isdisjoint(submitted):
            await self._end.wait()
            self._end.clear()
        visitors.cancel()
        while self._unfinished:
            await self._end.wait()
            self._end.clear()

    async def in_turns(self, cells: int) -> None:
        """As many of every session, each once the session's last one has ended. All sessions at once."""
        self.load = Load()
        await asyncio.gather(*(self._in_turns(socket, cells) for socket in self._sockets))

    async def close(self) -> None:
        for reader in self._readers:
            reader.cancel()
        for socket in self._sockets:
            await socket.send(messages.encode(messages.CloseSession()))
        await asyncio.gather(*(socket.close() for socket in self._sockets))

    async def _open_one(self, number: int, turn: asyncio.Semaphore) -> None:
        async with turn:
            socket = await connect(
                self._info.url.replace("http", "ws", 1) + "/v1/session",
                additional_headers={"Authorization": f"Bearer {self._info.token}"},
                open_timeout=60,
                compression=None,
                proxy=None,
            )
            version = messages.PROTOCOL_VERSION
            hello = messages.Hello(
                version, "benchmark", "", "another host", f"session {number}", latest_only=True
            )
            await socket.send(messages.encode(hello))
            welcome = _decoded(await socket.recv())
            assert isinstance(welcome, messages.Welcome), welcome
            self._sockets.append(socket)
            self._readers.append(asyncio.create_task(self._read(socket)))

    async def _visit(self) -> None:
        for socket in cycle(self._sockets):
            await asyncio.sleep(VISIT_EVERY_S)
            await self._hand_in(socket)

    async def _hand_in(self, socket: ClientConnection) -> None:
        await self._window.acquire()
        job = uuid.uuid4().hex
        self._unfinished.add(job)
        self._sent_s[job] = perf_counter()
        await socket.send(messages.encode(self._segment(job)))

    async def _in_turns(self, socket: ClientConnection, cells: int) -> None:
        for _ in range(cells):
            job = uuid.uuid4().hex
            self._unfinished.add(job)
            self._ends[job] = asyncio.Event()
            await socket.send(messages.encode(self._segment(job)))
            await self._ends[job].wait()
            del self._ends[job]

    def _segment(self, job: str) -> messages.SubmitSegment:
        return messages.SubmitSegment(job, 0, CELL, "NORMAL", True, "cell end", 0, self._program)

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            match _decoded(await socket.recv()):
                case messages.JobUpdate(job=job):
                    self._acknowledged(job)
                case messages.SegmentResult(job=job, outcome=outcome):
                    self._acknowledged(job)
                    self._over(job, outcome)
                case _:
                    pass

    def _acknowledged(self, job: str) -> None:
        sent_s = self._sent_s.pop(job, None)
        if sent_s is not None:
            self.load.acknowledged_s.append(perf_counter() - sent_s)
            self._window.release()
            self._acknowledgement.set()

    def _over(self, job: str, how: str) -> None:
        if job in self._unfinished:
            self._unfinished.discard(job)
            self.load.ended[how] = self.load.ended.get(how, 0) + 1
            self._end.set()
            if job in self._ends:
                self._ends[job].set()


def _decoded(data: str | bytes) -> messages.FromPool:
    assert isinstance(data, bytes)
    return messages.decode_from_pool(data)


def serve_load(asked: Connection, info: RuntimeInfo, program: bytes, sessions: int) -> None:
    """Do what comes over the pipe: ``open``, ``submit`` or ``in turns`` with how many cells of each session,
    ``ended``, ``close``. Each is answered with a :class:`Load`."""
    asyncio.run(_obey(asked, ManySessions(info, program), sessions))


async def _obey(asked: Connection, many: ManySessions, sessions: int) -> None:
    what = ""
    while what != "close":
        what, cells = await asyncio.to_thread(asked.recv)
        match what:
            case "open":
                await many.open(sessions)
            case "submit":
                await many.submit(cells)
            case "in turns":
                await many.in_turns(cells)
            case "ended":
                await many.ended()
            case _:
                await many.close()
        asked.send(many.load)
