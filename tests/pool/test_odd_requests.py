"""Samples of ``make sweep-api`` and ``make sweep-frames``."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_kind import KIND
from pool_kit import Client, Wire, running_pool
from real_pool import PoolUnderTest
from sweeps.api.calls import sweep, tracebacks
from sweeps.frames.attack import ANSWERED, CLOSED, REFUSED, attack

from djinn_lab.pool.launch import LOG_FILE
from djinn_lab.protocol import messages
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes

STEPS, FRAMES = 100, 160


def test_requests_drawn_from_the_schema_are_answered_below_500(tmp_path: Path) -> None:
    with running_pool(tmp_path) as info:
        found = sweep(info, 1, iter(range(STEPS)))
    assert found.faults == []
    assert set(found.answers) & {200, 201, 204}
    assert set(found.answers) & {401, 403}
    assert tracebacks(tmp_path / LOG_FILE) == []


def test_odd_frames_are_answered_or_refused_while_another_session_computes(tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path, f"{KIND}:1", 2**29) as pool:
        found = attack(pool, FRAMES)
    assert set(found.outcomes) <= {ANSWERED, REFUSED, CLOSED}, found.examples
    assert found.outcomes[REFUSED] > 0 < found.outcomes[ANSWERED]
    assert (found.cells > 0, found.wrong, found.sessions_left) == (True, 0, 0)
    assert tracebacks(tmp_path / LOG_FILE) == []


@pytest.mark.parametrize("first", [True, False])
def test_text_that_is_no_utf8_is_refused(shared_pool: RuntimeInfo, first: bool) -> None:
    hello = messages.encode(messages.Hello(messages.PROTOCOL_VERSION, "0", "2", "h", "a name"))
    with Wire(shared_pool) if first else Client(shared_pool) as wire:
        wire.socket.send(hello.replace(b"a name", b"\xff name"))
        refused = wire.receive()
    assert isinstance(refused, messages.RequestRefused)
    assert refused.kind == "message"
