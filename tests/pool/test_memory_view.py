"""``/v1/memory`` on a pool that did some work."""

from __future__ import annotations

import httpx
import msgspec
import pytest
from pool_kit import META, Client, act, http, new_user, rest

from djinn_lab.errors import PoolError, Refused
from djinn_lab.protocol.rest.sessions import MemoryView
from djinn_lab.protocol.runtime_file import RuntimeInfo


def test_memory_view_has_the_clock_the_devices_and_named_sessions(
    client: Client, shared_pool: RuntimeInfo
) -> None:
    client.run(act("", keep=True), target="cpu:0")
    found = rest(shared_pool).memory()
    assert found.now == pytest.approx(rest(shared_pool).status().now, abs=5)
    device = next(one for one in found.devices if one.device == "cpu:0")
    assert device.session_bytes[client.session] == META.nbytes
    assert device.memory_bytes == 2**20
    own = next(one for one in found.sessions if one.session == client.session)
    assert (own.name, own.device, own.jobs) == ("a test", "cpu:0", 1)
    assert own.connection == "connected"


def test_the_answer_is_what_its_type_says(client: Client, shared_pool: RuntimeInfo) -> None:
    with http(shared_pool) as api:
        report = msgspec.json.decode(api.get("/v1/memory").content, type=MemoryView)
    assert client.session in {session.session for session in report.sessions}


def test_a_viewer_sees_other_peoples_sessions_and_a_stranger_nothing(
    client: Client, shared_pool: RuntimeInfo
) -> None:
    _, token = new_user(shared_pool, "viewer")
    seen = rest(shared_pool, token).memory()
    assert {one.session for one in seen.sessions} >= {client.session}
    with http(shared_pool, "wrong") as stranger:
        refused: httpx.Response = stranger.get("/v1/memory")
    assert refused.status_code == 401


def test_a_phase_can_be_signalled_from_outside_the_session(client: Client, shared_pool: RuntimeInfo) -> None:
    api = rest(shared_pool)
    said = api.signal_phase(client.session, "IO_WAIT", 20)
    assert said.answer == "accepted"
    (own,) = [one for one in api.memory().sessions if one.session == client.session]
    assert own.phase == "IO_WAIT"
    assert api.signal_phase(client.session, "SOON").answer == "accepted"
    rejected = api.signal_phase(client.session, "SLEEP")
    assert rejected.answer == "rejected"
    assert "SLEEP" in rejected.message
    assert api.signal_phase(client.session, "IO_WAIT", -5).answer == "rejected"


def test_foreign_unknown_and_broken_signals_are_refused(client: Client, shared_pool: RuntimeInfo) -> None:
    _, token = new_user(shared_pool)
    with pytest.raises(Refused, match="another user"):
        rest(shared_pool, token).signal_phase(client.session, "IO_WAIT")
    with pytest.raises(PoolError, match="no session"):
        rest(shared_pool).signal_phase("unknown", "IO_WAIT")
    with http(shared_pool) as api:
        for body in ("", "{}", '{"phase": 3}', '{"phase": "IO_WAIT", "expected_s": "soon"}'):
            answer = api.post(f"/v1/sessions/{client.session}/phase", content=body)
            assert answer.status_code == 422
            assert answer.json()["detail"]
