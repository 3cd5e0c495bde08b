"""Agents as sessions of a pool: many at once, each over a connection of its own, in one event loop."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from time import perf_counter

import httpx
from websockets.asyncio.client import ClientConnection, connect

from djinn_lab.protocol import messages
from djinn_lab.protocol.runtime_file import RuntimeInfo


class AgentFailed(Exception):
    """A turn did not run. ``family``: as in :class:`djinn_lab.protocol.messages.ErrorInfo`."""

    def __init__(self, family: str, message: str) -> None:
        super().__init__(f"{family}: {message}")
        self.family = family


@dataclass
class Turn:
    """Seconds by this process's clock. ``restoring_s``, ``queued_s``: what the pool waited for memory and
    for the device. ``outputs``: digest of what was fetched."""

    started_s: float
    seconds: float
    restoring_s: float
    queued_s: float
    run_s: float
    outputs: str


@dataclass
class Agent:
    """An agent's session with a pool. Use in an ``async with`` statement."""

    info: RuntimeInfo
    name: str
    turns: list[Turn] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    async def __aenter__(self) -> Agent:
        headers = {"Authorization": f"Bearer {self.info.token}"}
        address = self.info.url.replace("http", "ws", 1) + "/v1/session"
        self._socket: ClientConnection = await connect(
            address, additional_headers=headers, max_size=None, compression=None, proxy=None
        )
        hello = messages.Hello(messages.PROTOCOL_VERSION, "benchmark", "", "another host", self.name)
        await self._socket.send(messages.encode(hello))
        answer = await self._receive()
        if not isinstance(answer, messages.Welcome):
            raise AgentFailed("refused", str(answer))
        self.session = answer.session
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._socket.send(messages.encode(messages.CloseSession()))
        await self._socket.close()

    async def signal(self, phase: str, expected_s: float | None = None) -> str:
        """Signal a phase and return the pool's answer."""
        await self._socket.send(messages.encode(messages.SignalPhase(phase, expected_s)))
        while True:
            message = await self._receive()
            if isinstance(message, messages.PhaseAnswered):
                return message.answer

    async def turn(self, segments: Sequence[bytes]) -> Turn:
        """Run one cell. Raises AgentFailed."""
        job, started_s = uuid.uuid4().hex, perf_counter()
        stages: dict[str, float] = {}
        outputs = sha256()
        for number, program in enumerate(segments):
            submit = messages.SubmitSegment(
                job=job,
                segment=number,
                cell=f"turn {len(self.turns) + 1}",
                priority="NORMAL",
                final=number == len(segments) - 1,
                cut="cell end" if number == len(segments) - 1 else "streamed",
                cut_line=0,
                program=program,
            )
            await self._socket.send(messages.encode(submit))
            result = await self._result()
            for stage, seconds in result.stages.items():
                stages[stage] = stages.get(stage, 0.0) + seconds
            for fetched in result.fetched:
                outputs.update(fetched.data or b"")
        turn = Turn(
            started_s=started_s,
            seconds=perf_counter() - started_s,
            restoring_s=stages.get("restoring", 0.0),
            queued_s=stages.get("queued", 0.0),
            run_s=stages.get("run", 0.0),
            outputs=outputs.hexdigest(),
        )
        self.turns.append(turn)
        return turn

    async def _result(self) -> messages.SegmentResult:
        while True:
            message = await self._receive()
            if isinstance(message, messages.JobUpdate) and message.state == "RESTORING":
                self.reasons.append(message.reason)
            if isinstance(message, messages.SegmentResult):
                if message.outcome != "done":
                    error = message.error
                    raise AgentFailed(error.family if error else "", error.message if error else "")
                return message

    async def _receive(self) -> messages.FromPool:
        data = await self._socket.recv()
        assert isinstance(data, bytes)
        return messages.decode_from_pool(data)


async def upload(info: RuntimeInfo, blobs: Mapping[str, bytes]) -> None:
    """Upload the weights, once for all agents."""
    headers = {"Authorization": f"Bearer {info.token}"}
    async with httpx.AsyncClient(base_url=info.url, headers=headers, trust_env=False) as client:
        for digest, data in blobs.items():
            (await client.put(f"/v1/blobs/{digest}", content=data)).raise_for_status()
