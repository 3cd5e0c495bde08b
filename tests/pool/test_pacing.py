"""A session that asks too often waits; the others do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_kit import Client, http, running_pool

from djinn_lab.pool.pacing import BURST_S, SIGNALS_PER_S, Pace
from djinn_lab.protocol.messages import PhaseAnswered, SignalPhase

FLOOD = 2000
RATE = 10.0


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


def test_who_asks_seldom_never_waits() -> None:
    pace = Pace(RATE)
    assert not any(pace.take(number / RATE) for number in range(1000))


@pytest.mark.processes
def test_a_flood_of_signals_waits_for_itself_and_others_go_on(tmp_path: Path) -> None:
    with running_pool(tmp_path) as info, Client(info) as flood, Client(info) as other:
        for number in range(FLOOD):
            flood.send(SignalPhase("IO_WAIT" if number % 2 else "COMPUTE", 1.0))
        for _ in range(20):
            other.signal("IO_WAIT", 5.0)
        answers = [flood.receive() for _ in range(10)]
        assert all(isinstance(answer, PhaseAnswered) for answer in answers)
        path = f"/v1/sessions/{flood.session}/phase"
        with http(info) as client:
            refused = client.post(path, json={"phase": "IO_WAIT", "expected_s": 1.0})
            assert refused.status_code == 429
            assert "signals too often" in refused.json()["detail"]
            assert int(refused.headers["Retry-After"]) >= 1
            assert client.get("/v1/alive").status_code == 200
        flood.socket.socket.shutdown(2)
        with Client(info, session=flood.session) as again:
            assert again.welcome.resumed
    assert FLOOD > 2 * SIGNALS_PER_S * BURST_S
