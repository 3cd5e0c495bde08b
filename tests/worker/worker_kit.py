"""A device in this process, with its tiers, and a worker process at the other end of a socket pair."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from programs import Script

from djinn_lab.protocol import worker as messages
from djinn_lab.protocol.worker import CopyDone, CopyFailed, FetchedTensor
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.worker.framing import FrameReader, send_frame
from djinn_lab.worker.host_arena import HostArena
from djinn_lab.worker.interpreter import Interpreter, Outcome, Stop
from djinn_lab.worker.link import CpuLink
from djinn_lab.worker.pieces import PieceStore
from djinn_lab.worker.process import memory_report
from djinn_lab.worker.tier_service import Message, TierService
from djinn_lab.worker.tiers import Fences, Tiers

MIB = 2**20
Answer = CopyDone | CopyFailed
Kind = TypeVar("Kind")


def read_fetched(item: FetchedTensor, results: Path) -> torch.Tensor:
    """Return a fetched tensor. ``results``: the folder for tensors that are not inline; their file is
    deleted."""
    if item.data is not None:
        data = item.data
    else:
        assert item.blob is not None
        data = (results / item.blob).read_bytes()
        (results / item.blob).unlink()
    dtype: torch.dtype = getattr(torch, item.meta.dtype)
    if not data:
        return torch.empty(item.meta.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(item.meta.shape)


def run_undisturbed(
    interpreter: Interpreter, session: str, program: Program, blobs: Path = Path()
) -> list[torch.Tensor]:
    """Run a program in an interpreter without copies and return what it fetches."""
    paths = {source.blob: str(blobs / source.blob) for source in program.sources if source.blob is not None}
    encoded = encode_program(program)
    outcome = interpreter.run(session, encoded, paths, lambda: None, lambda done, total: None)
    assert outcome.failure is None, outcome.failure
    return [read_fetched(item, blobs) for item in outcome.fetched]


class Device:
    """A worker's parts without its process: ``run`` runs at once, transfers go over its lanes."""

    def __init__(
        self,
        directory: Path,
        memory_bytes: int = 64 * MIB,
        host_bytes: int = 64 * MIB,
        disk_bytes: int = 0,
        link_bytes_per_second: float = 0.0,
        name: str = "cpu:0",
        fences: Fences | None = None,
        native: bool = True,
        results: Path | None = None,
    ) -> None:
        self.directory = directory
        self.results = results or directory
        directory.mkdir(exist_ok=True)
        self.arena = HostArena(host_bytes, directory, name)
        self.store = PieceStore(self.arena, disk_bytes, directory)
        self.tiers = Tiers(self.store, fences or Fences())
        device = torch.device("cpu")
        link = CpuLink(link_bytes_per_second)
        self.interpreter = Interpreter(device, memory_bytes, self.results, self.tiers, native, link)
        self.copies = self.interpreter.copies
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.service = TierService(self.copies, self.interpreter.values_of, self.memory, self.answers.put)
        self._number = 0

    def close(self) -> None:
        self.service.stop()
        for session in list(self.interpreter.sessions):
            self.interpreter.close(session)

    def memory(self) -> messages.WorkerMemory:
        """Report its memory, without the report's number."""
        return msgspec.structs.replace(memory_report(self.interpreter), number=0)

    def blob(self, tensor: torch.Tensor, name: str) -> str:
        (self.directory / name).write_bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return name

    def run(self, session: str, program: Program) -> Outcome:
        outcome = self.try_run(session, program)
        assert outcome.failure is None, outcome.failure
        return outcome

    def try_run(
        self,
        session: str,
        program: Program,
        should_stop: Callable[[], Stop | None] = lambda: None,
        resume: messages.Resume | None = None,
        key: bytes | None = None,
    ) -> Outcome:
        blobs = {
            source.blob: str(self.directory / source.blob)
            for source in program.sources
            if source.blob is not None
        }
        encoded = encode_program(program)
        return self.interpreter.run(
            session, encoded, blobs, should_stop, lambda done, total: None, key, resume
        )

    def fetch(self, session: str, program: Program) -> list[torch.Tensor]:
        return [read_fetched(item, self.results) for item in self.run(session, program).fetched]

    def send(self, message: Message) -> None:
        self.service.handle(message)

    def ask(self, message: Message) -> Answer:
        self.send(message)
        answer = self.answers.get(timeout=30)
        assert not isinstance(message, messages.Expedite)
        assert answer.transfer == message.transfer
        return answer

    def number(self) -> int:
        self._number += 1
        return self._number

    def store_whole(self, session: str) -> CopyDone:
        return done(self.ask(messages.StoreState(self.number(), session)))

    def evict(self, session: str, discard: bool = False) -> CopyDone:
        return done(self.ask(messages.Evict(self.number(), session, discard)))

    def restore(self, session: str, manifest: bytes | None = None, released: Sequence[int] = ()) -> CopyDone:
        order = messages.Restore(self.number(), session, manifest=manifest, released=tuple(released))
        return done(self.ask(order))

    def park(self, session: str) -> CopyDone:
        """Store and evict a session, and return the answer to the store."""
        stored = self.store_whole(session)
        assert stored.whole
        self.evict(session)
        return stored

    def demote(self, session: str) -> CopyDone:
        return done(self.ask(messages.Demote(self.number(), session)))


def done(answer: Answer) -> CopyDone:
    assert isinstance(answer, CopyDone), answer
    return answer


def failed(answer: Answer) -> CopyFailed:
    assert isinstance(answer, CopyFailed), answer
    return answer


@dataclass
class WorkerUnderTest:
    """A real worker process; use :meth:`start`."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    frames: FrameReader
    directory: Path
    ready: messages.WorkerReady
    sessions: set[str] = field(default_factory=set)

    @classmethod
    def start(
        cls, directory: Path, options: Iterable[str] = (), memory_bytes: int = 64 * MIB
    ) -> WorkerUnderTest:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "djinn_lab.worker", "--fd", str(theirs.fileno())]
        command += ["--device", "cpu:0", "--memory-bytes", str(memory_bytes), "--threads", "1"]
        command += ["--store-directory", str(directory), "--result-directory", str(directory), *options]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        ours.settimeout(60)
        frames = FrameReader(ours)
        ready = _receive(frames)
        assert isinstance(ready, messages.WorkerReady)
        return cls(process, ours, frames, directory, ready)

    def send(self, message: messages.ToWorker) -> None:
        if isinstance(message, messages.RunSegment | messages.Restore):
            self.sessions.add(message.session)
        send_frame(self.connection, messages.encode(message))

    def forget_all(self) -> None:
        """Close every session of the worker; messages that arrive meanwhile are dropped."""
        while self.sessions:
            session = self.sessions.pop()
            self.send(messages.Close(session))
            while (closed := self.wait_for(messages.Closed)).session != session:
                continue
            assert session not in closed.memory.session_bytes

    def receive(self) -> messages.FromWorker:
        return _receive(self.frames)

    def wait_for(self, kind: type[Kind]) -> Kind:
        """Return the next message of a kind; messages before it are dropped."""
        while True:
            message = self.receive()
            if isinstance(message, kind):
                return message

    def run(self, session: str, program: Program, job: str = "job") -> messages.SegmentDone:
        self.send(messages.RunSegment(job, 0, session, encode_program(program)))
        return self.wait_for(messages.SegmentDone)

    def stop(self) -> None:
        self.send(messages.Shutdown())
        assert self.process.wait(timeout=30) == 0
        self.connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)
        self.connection.close()


def start_worker(directory: Path, link_bytes_per_second: float = 0.0) -> WorkerUnderTest:
    """Start a worker with 64 MiB on each of device, host and disk."""
    options = ["--host-directory", str(directory), "--disk-directory", str(directory)]
    options += ["--host-bytes", str(64 * MIB), "--disk-bytes", str(64 * MIB)]
    options += ["--link-bytes-per-second", str(link_bytes_per_second)]
    return WorkerUnderTest.start(directory, options)


def _receive(frames: FrameReader) -> messages.FromWorker:
    frame = frames.next()
    assert frame is not None, "the worker closed the connection"
    return messages.decode_from_worker(frame)


def keep(device: Device, session: str, script: Script, *tensors: torch.Tensor) -> tuple[int, ...]:
    values = tuple(script.load(tensor) for tensor in tensors)
    device.run(session, script.program(keep=values))
    return values


def fetch(device: Device, session: str, script: Script, *values: int) -> list[torch.Tensor]:
    return device.fetch(session, script.program(fetch=values))
