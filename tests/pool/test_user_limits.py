"""What one user may have: sessions, connections, uploads, requests. The others keep theirs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from blake3 import blake3
from pool_kit import Client, Wire, act, http, new_user, read, rest, running_pool, upload
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from websockets.exceptions import InvalidStatus

from djinn_lab.pool.api.read_limits import ReadLimiter
from djinn_lab.pool.authentication import Authentication
from djinn_lab.pool.user_limits import RequestRates
from djinn_lab.protocol.messages import RequestRefused
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes

UPLOADS = 3000


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeInfo]:
    with running_pool(
        tmp_path_factory.mktemp("tight"),
        sessions_per_user=2,
        connections_per_user=3,
        upload_bytes_per_user=UPLOADS,
        requests_per_s=20,
    ) as info:
        yield info


def put(web: httpx.Client, data: bytes) -> httpx.Response:
    return web.put(f"/v1/blobs/{blake3(data).hexdigest()}", content=data)


def random_bytes(count: int) -> bytes:
    return uuid.uuid4().bytes * (count // 16)


def test_a_user_has_so_many_sessions_and_others_have_theirs(tight: RuntimeInfo) -> None:
    (ann, token), (_, other) = new_user(tight), new_user(tight)
    with Client(tight, token) as first, Client(tight, token):
        with Wire(tight, token) as third:
            refused = third.hello()
        assert isinstance(refused, RequestRefused)
        assert f"{ann} has 2 sessions" in refused.message
        assert "djinn-lab close" in refused.message
        with Client(tight, other) as theirs:
            assert theirs.run(act("")).outcome == "done"
        rest(tight, token).close_session(first.session)
        with Client(tight, token) as again:
            assert again.run(act("")).outcome == "done"


def test_a_user_has_so_many_connections(tight: RuntimeInfo) -> None:
    ann, token = new_user(tight)
    with Wire(tight, token), Wire(tight, token), Wire(tight, token):
        with pytest.raises(InvalidStatus) as refused:
            Wire(tight, token)
        assert refused.value.response.status_code == 429
        assert f"{ann} has 3 connections".encode() in (refused.value.response.body or b"")
    last = rest(tight).audit(1, user=ann)[0]
    assert (last.action, last.status) == ("WebSocket /v1/session", 429)


def test_the_oldest_uploads_of_a_user_are_dropped_for_the_newest(tight: RuntimeInfo) -> None:
    _, token = new_user(tight)
    _, other = new_user(tight)
    with http(tight, token) as web, http(tight, other) as theirs:
        shared = random_bytes(1600)
        for client in (theirs, web):
            assert put(client, shared).status_code == 201
        assert put(web, random_bytes(2000)).status_code == 201
    with Client(tight, token) as mine:
        digest = blake3(shared).hexdigest()
        assert mine.missing(digest) == [digest]
    with Client(tight, other) as keeps:
        assert keeps.missing(digest) == []


def test_uploads_beyond_what_a_user_may_have_are_refused(tight: RuntimeInfo) -> None:
    ann, token = new_user(tight)
    needed = random_bytes(2000)
    with Client(tight, token) as client, http(tight, token) as web:
        client.write_blob(blake3(needed).hexdigest(), needed)
        assert client.missing(blake3(needed).hexdigest()) == []  # and pinned for the next cell
        refused = put(web, random_bytes(2000))
        assert refused.status_code == 413
        assert f"The uploads of {ann}" in refused.json()["detail"]
        assert "--upload-bytes-per-user" in refused.json()["detail"]
        more = random_bytes(1600)
        digest = blake3(more).hexdigest()
        client.write_blob(digest, more)
        lost = client.run(read(upload(1, digest)))
        assert lost.error is not None
        assert "the limit for a user" in lost.error.message
    too_large = random_bytes(UPLOADS + 1600)
    with http(tight, token) as web:
        assert put(web, too_large).status_code == 413


def test_uploads_of_all_are_shared_once_there_are_two_users(tmp_path: Path) -> None:
    data = random_bytes(2000)
    with running_pool(tmp_path, blob_bytes_max=UPLOADS) as info, http(info) as owner:
        assert put(owner, data).status_code == 201
        _, token = new_user(info)
        with http(info, token) as ann:
            assert put(ann, random_bytes(2000)).status_code == 413
            assert put(ann, random_bytes(1200)).status_code == 201


def test_a_rate_is_of_requests_and_messages_together_and_of_each_user() -> None:
    rates = RequestRates(per_s=10)
    assert [rates.take("ann", 100.0) for _ in range(10)] == [0.0] * 10
    assert rates.take("ann", 100.0) == pytest.approx(0.1)
    assert rates.wait_s("ann", 100.0) == pytest.approx(0.2)
    assert rates.take("bob", 100.0) == 0.0
    assert rates.wait_s("ann", 101.0) == 0.0


def test_messages_of_a_session_count_for_requests_which_are_refused_at_last() -> None:
    users, rates = Authentication("owner's"), RequestRates(per_s=1)
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("done"))])
    app.add_middleware(ReadLimiter, authentication=users, rates=rates)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://pool") as web:
            now_s = asyncio.get_running_loop().time()
            for _ in range(12):  # as a WebSocket does
                rates.take(users.owner, now_s)
            return await web.get("/", headers={"Authorization": "Bearer owner's"})

    refused = asyncio.run(ask())
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 10
    assert f"{users.owner} asks too often. Ask again in" in refused.json()["detail"]
