"""A real pool process with stand-in workers, and a bare client that speaks the protocol."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec
import pytest
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_websocket

from djinn_lab.client.rest import PoolClient
from djinn_lab.jobs import Terms
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol import messages
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.srg.program import (
    NodeRecord,
    Program,
    Scope,
    Source,
    Template,
    TensorMeta,
    encode_program,
)
from djinn_lab.system.host import host_id
from djinn_lab.system.liveness import process_is_alive

STAND_IN = (sys.executable, str(Path(__file__).parent / "stand_in_worker.py"))
META = TensorMeta("float32", (2, 2), (2, 1))
ANSWER_TIMEOUT_S = 120.0


@contextmanager
def running_pool(
    directory: Path,
    devices: str = "cpu:2",
    memory_bytes: int = 2**20,
    worker_command: Sequence[str] | None = STAND_IN,
    blob_bytes_max: int | None = None,
    database: str | None = None,
    standby: bool = False,
    accept_weak_isolation: bool = True,
    **more: Any,
) -> Iterator[RuntimeInfo]:
    """Run a pool below ``directory`` until the block ends. ``more``: as of ``start_pool``. (Stand-in workers
    have no sandbox.)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJINN_RUNTIME_DIR", str(directory))
        patch.delenv("DJINN_POOL", raising=False)
        patch.delenv("DJINN_DATABASE", raising=False)
        patch.delenv("DJINN_TOKEN", raising=False)
        patch.delenv("DJINN_POOL_CERTIFICATE", raising=False)
        info = start_pool(
            devices=devices,
            memory_bytes=memory_bytes,
            threads=1,
            worker_command=worker_command,
            blob_bytes_max=blob_bytes_max,
            database=database,
            standby=standby,
            accept_weak_isolation=accept_weak_isolation,
            **{"restart": False} | more,
        )
        try:
            yield info
        finally:
            patch.setenv("DJINN_RUNTIME_DIR", str(directory))  # another pool's end may have put back its own
            stop_pool()
            until_dead(info.pid)


def until_dead(pid: int, timeout_s: float = 10) -> None:
    """Wait until a killed process is gone."""
    deadline_s = time.monotonic() + timeout_s
    while process_is_alive(pid):
        assert time.monotonic() < deadline_s, f"process {pid} lives on"
        time.sleep(0.01)


def http(info: RuntimeInfo, token: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token or info.token}"}
    return httpx.Client(base_url=info.url, headers=headers, trust_env=False, timeout=30)


def rest(info: RuntimeInfo, token: str | None = None) -> PoolClient:
    return PoolClient(info.url, token or info.token)


def new_user(info: RuntimeInfo, role: str = "user") -> tuple[str, str]:
    """Create a user and return its name and token."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    return name, rest(info).create_user(name, role).token


Answer = TypeVar("Answer", bound=messages.FromPool)


class Wire:
    """A session's WebSocket, message by message."""

    def __init__(self, info: RuntimeInfo, token: str | None = None) -> None:
        self._stack = ExitStack()
        self.socket: ClientConnection = self._stack.enter_context(
            open_websocket(
                info.url.replace("http", "ws", 1) + "/v1/session",
                additional_headers={"Authorization": f"Bearer {token or info.token}"},
                max_size=None,
                compression=None,
                proxy=None,
                ping_interval=None,
                close_timeout=2,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def hello(
        self,
        session: str | None = None,
        version: int = messages.PROTOCOL_VERSION,
        host: str | None = None,
        latest_only: bool = False,
        process: int | None = None,
    ) -> messages.FromPool:
        """``process``: of the client; None: it may come back after its connection broke."""
        self.send(
            messages.Hello(
                version, "0.1.0", "2.9", host or host_id(), "a test", session, latest_only, process
            )
        )
        return self.receive()

    def send(self, message: messages.ToPool) -> None:
        self.socket.send(messages.encode(message))

    def receive(self) -> messages.FromPool:
        data = self.socket.recv(ANSWER_TIMEOUT_S)
        assert isinstance(data, bytes)
        return messages.decode_from_pool(data)


class Client(Wire):
    """A :class:`Wire` after a successful handshake."""

    def __init__(
        self,
        info: RuntimeInfo,
        token: str | None = None,
        session: str | None = None,
        host: str | None = None,
        latest_only: bool = False,
        process: int | None = None,
    ) -> None:
        super().__init__(info, token)
        self._set_aside: list[messages.FromPool] = []
        welcome = self.hello(session, host=host, latest_only=latest_only, process=process)
        assert isinstance(welcome, messages.Welcome), welcome
        self.welcome = welcome
        self.updates: list[messages.JobUpdate] = []

    def receive(self) -> messages.FromPool:
        return self._set_aside.pop(0) if self._set_aside else super().receive()

    def answer(self, kind: type[Answer]) -> Answer:
        """Wait for a message of ``kind``; those of running jobs that arrive meanwhile are kept for later."""
        while True:
            message = super().receive()
            if isinstance(message, kind):
                return message
            assert isinstance(message, messages.JobUpdate | messages.SegmentResult), message
            self._set_aside.append(message)

    @property
    def session(self) -> str:
        return self.welcome.session

    def submit(
        self,
        program: Program | bytes,
        job: str | None = None,
        segment: int = 0,
        final: bool = True,
        priority: str = "NORMAL",
        cell: str = "cell 1",
        target: str | None = None,
        terms: Terms | None = None,
        follows: bool = False,
        again: bool = False,
    ) -> str:
        job = job or uuid.uuid4().hex
        encoded = program if isinstance(program, bytes) else encode_program(program)
        if target is not None:
            terms = msgspec.structs.replace(terms or Terms(), target=target)
        self.send(
            messages.SubmitSegment(
                *(job, segment, cell, priority, final, "cell end", 0, encoded, "y = x + 1"),
                terms=terms,
                follows=follows,
                again=again,
            )
        )
        return job

    def result(self, job: str) -> messages.SegmentResult:
        """Wait for the next result of ``job``; updates that arrive meanwhile are collected."""
        while True:
            message = self.receive()
            if isinstance(message, messages.JobUpdate):
                self.updates.append(message)
            else:
                assert isinstance(message, messages.SegmentResult), message
                assert message.job == job
                return message

    def run(self, program: Program | bytes, **options: object) -> messages.SegmentResult:
        return self.result(self.submit(program, **options))  # type: ignore[arg-type]

    def signal(self, phase: str, expected_s: float | None = None) -> messages.PhaseAnswered:
        self.send(messages.SignalPhase(phase, expected_s))
        return self.answer(messages.PhaseAnswered)

    def until(self, job: str, state: str) -> messages.JobUpdate:
        """Wait for an update of ``job`` with ``state``, which lasts: one over at once may have none."""
        while True:
            message = self.receive()
            assert isinstance(message, messages.JobUpdate), message
            self.updates.append(message)
            if (message.job, message.state) == (job, state):
                return message

    def runs_or_ended(self, job: str) -> bool:
        """Wait until ``job`` runs, again or still, and return True; False where it has ended."""
        while True:
            message = self.receive()
            if isinstance(message, messages.SegmentResult):
                self._set_aside.insert(0, message)
                return False
            assert isinstance(message, messages.JobUpdate), message
            self.updates.append(message)
            if (message.job, message.state) == (job, "RUNNING"):
                return True

    def missing(self, *digests: str) -> list[str]:
        self.send(messages.QueryBlobs(list(digests)))
        return self.answer(messages.BlobsMissing).digests

    def write_blob(self, digest: str, data: bytes) -> None:
        """Upload bytes as a client on the pool's host does: write the file and announce it."""
        assert self.welcome.blob_directory is not None
        (Path(self.welcome.blob_directory) / digest).write_bytes(data)
        self.send(messages.BlobStored(digest, len(data)))


def act(
    *verbs: str, fetch: bool = True, keep: bool = False, meta: TensorMeta = META, first: int = 1
) -> Program:
    """Return a program with one op for each verb of the stand-in worker; the last value is fetched."""
    nodes = [NodeRecord(0, (), (first + n,), (0,), (first + n,), n) for n in range(len(verbs))]
    last = first + len(verbs) - 1
    return Program(
        metas=(meta,),
        templates=(Template("aten.ones.default", [list(meta.shape)], {}),),
        scopes=tuple(Scope(verb, 0, "cell 1", 1, "forward") for verb in verbs),
        sources=(),
        nodes=nodes,
        keep=(last,) if keep else (),
        fetch=(last,) if fetch else (),
    )


def read(*sources: Source, meta: TensorMeta = META) -> Program:
    """Return a program without ops that fetches its sources."""
    return Program((meta,), (), (), sources, (), fetch=tuple(source.value for source in sources))


def upload(value: int, digest: str) -> Source:
    return Source(value, value, 0, "input", digest)


def held(value: int) -> Source:
    return Source(value, value, 0, "activation", None)


def peak_resident_bytes(pid: int) -> int:
    """Return the most memory that the process ever had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} is gone")
