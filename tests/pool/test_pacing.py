"""A session that asks too often waits; the others do not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from pool_kit import Client, act, http, rest, running_pool
from websockets.asyncio.client import connect

from djinn_lab.pool.database.tables import journal
from djinn_lab.pool.sessions.pacing import BURST_S, SIGNALS_HANDLED_PER_S, SIGNALS_PER_S, Pace
from djinn_lab.protocol.messages import (
    PROTOCOL_VERSION,
    BlobsMissing,
    Hello,
    PhaseAnswered,
    QueryBlobs,
    SegmentResult,
    SignalPhase,
    decode_from_pool,
    encode,
)
from djinn_lab.protocol.runtime_file import RuntimeInfo

FLOOD = 2000
RATE = 10.0
QUESTIONS, QUESTION_DIGESTS = 12_000, 50
"""Many times what the sockets' buffers hold."""


@pytest.mark.hypothesis
@given(st.lists(st.floats(0, 3), min_size=1, max_size=80))
def test_no_more_than_the_burst_and_the_rate_in_any_time(pauses_s: list[float]) -> None:
    pace, now_s, done_s = Pace(RATE), 0.0, []
    for pause_s in pauses_s:
        now_s += pause_s
        wait_s = pace.take(now_s)
        assert wait_s >= 0
        now_s += wait_s
        done_s.append(now_s)
    for first, begin_s in enumerate(done_s):
        for last in range(first, len(done_s)):
            assert last - first + 1 <= RATE * (BURST_S + done_s[last] - begin_s) + 1 + 1e-6


def test_requests_at_the_allowed_rate_never_wait() -> None:
    pace = Pace(RATE)
    assert not any(pace.take(number / RATE) for number in range(1000))


@pytest.mark.processes
def test_flood_of_signals_delays_only_its_own_session(tmp_path: Path) -> None:
    with running_pool(tmp_path) as info, Client(info) as flood, Client(info) as other:
        for number in range(FLOOD):
            flood.send(SignalPhase("IO_WAIT" if number % 2 else "COMPUTE", 1.0))
        for _ in range(20):
            other.signal("IO_WAIT", 5.0)
        answers = [flood.receive() for _ in range(10)]
        assert all(isinstance(answer, PhaseAnswered) for answer in answers)
        path = f"/v1/sessions/{flood.session}/phase"
        with http(info) as client:
            posted = (client.post(path, json={"phase": "IO_WAIT", "expected_s": 1.0}) for _ in range(FLOOD))
            refused = next(answer for answer in posted if answer.status_code != 200)
            assert refused.status_code == 429
            assert "signals too often" in refused.json()["detail"]
            assert int(refused.headers["Retry-After"]) >= 1
            assert client.get("/v1/alive").status_code == 200
        flood.socket.socket.shutdown(2)
        with Client(info, session=flood.session) as again:
            assert again.welcome.resumed
    assert FLOOD > 2 * SIGNALS_PER_S * BURST_S


@pytest.mark.processes
def test_last_of_many_signals_applies_before_the_next_cell(tmp_path: Path) -> None:
    count, answers = 300, list[PhaseAnswered]()
    with running_pool(tmp_path) as info, Client(info) as agent, Client(info) as other:
        began_s = time.monotonic()
        for number in range(count):
            agent.send(SignalPhase("IO_WAIT" if number % 2 else "COMPUTE", 1.0))
        agent.send(SignalPhase("IO_WAIT", 77.0))
        cell = agent.submit(act(""))
        assert other.run(act("")).outcome == "done"
        while not isinstance(message := agent.receive(), SegmentResult):
            if isinstance(message, PhaseAnswered):
                answers.append(message)
        seconds = time.monotonic() - began_s
        assert message.outcome == "done"
        assert agent.signal("COMPUTE").answer in ("accepted", "deferred")
        rest(info).status()
    assert len(answers) == count + 1
    assert {answer.answer for answer in answers} == {"accepted", "superseded"}
    assert answers[-1].answer == "accepted"
    lines = _lines_about(tmp_path, agent.session)
    arrived = next(number for number, (_, event) in enumerate(lines) if cell in event)
    signals = [event for kind, event in lines[:arrived] if kind == "PhaseSignalled"]
    assert '"expected_s":77.0' in signals[-1]
    assert len(signals) <= SIGNALS_HANDLED_PER_S * (BURST_S + seconds) + 2


@pytest.mark.processes
def test_a_client_that_does_not_read_is_not_read_from_until_it_does(tmp_path: Path) -> None:
    with running_pool(tmp_path) as info, Client(info) as other:
        asyncio.run(_ask_without_reading(info, other))


async def _ask_without_reading(info: RuntimeInfo, other: Client) -> None:
    digests, sent = [f"{number:064x}" for number in range(QUESTION_DIGESTS)], 0
    async with connect(
        info.url.replace("http", "ws", 1) + "/v1/session",
        additional_headers={"Authorization": f"Bearer {info.token}"},
        compression=None,
        proxy=None,
    ) as deaf:
        await deaf.send(encode(Hello(PROTOCOL_VERSION, "", "", "", "deaf")))
        await deaf.recv()

        async def ask() -> None:
            nonlocal sent
            for _ in range(QUESTIONS):
                await deaf.send(encode(QueryBlobs(digests)))
                sent += 1

        asking, before = asyncio.create_task(ask()), -1
        while sent > before:  # until it is stuck
            before = sent
            assert (await asyncio.to_thread(other.run, act(""))).outcome == "done"
            await asyncio.wait([asking], timeout=1.0)
        assert sent < QUESTIONS
        for _ in range(QUESTIONS):
            answer = await deaf.recv()
            assert isinstance(answer, bytes)
            assert decode_from_pool(answer) == BlobsMissing(digests)
        await asking


def _lines_about(directory: Path, session: str) -> list[tuple[str, str]]:
    """Read the journal's events about a session: kind and content."""
    engine = sa.create_engine(f"sqlite:///{directory / 'pool.sqlite3'}")
    with engine.connect() as connection:
        rows = connection.execute(sa.select(journal.c.event, journal.c.detail).order_by(journal.c.seq)).all()
    engine.dispose()
    return [(kind, body) for kind, body in rows if session in body]
