"""What one client sends, or does not send, leaves the pool's memory and connections to the others."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from blake3 import blake3
from pool_kit import Client, act, http, rest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from djinn_lab.errors import Refused
from djinn_lab.pool.api import request_limits
from djinn_lab.pool.api.web_server import WebServer
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.protocol.messages import NAME_CHARS_MAX
from djinn_lab.protocol.runtime_file import RuntimeInfo

SHORT_S = 0.4


def endless() -> Iterator[bytes]:
    for _ in range(64):
        yield b"x" * 2**20


@pytest.mark.parametrize("body", [endless, lambda: b"x" * 2**21], ids=["without a length", "with a length"])
def test_a_body_without_end_is_refused(shared_pool: RuntimeInfo, body: object) -> None:
    assert callable(body)
    with http(shared_pool) as web:
        answer = web.post("/v1/users", content=body())
        assert answer.status_code == 413
        assert "Send less at once" in answer.json()["detail"]
        assert web.get("/v1/alive").status_code == 200


def test_long_names_are_cut(client: Client, shared_pool: RuntimeInfo) -> None:
    job = client.submit(act("sleep 0"), cell="c" * 10_000)
    client.result(job)
    assert rest(shared_pool).job(job).cell == "c" * NAME_CHARS_MAX


@pytest.mark.parametrize("sent", ["nan", "inf"])
@pytest.mark.parametrize("path", ["usage?since", "audit?since", "history?since", "history?until"])
def test_a_time_that_is_no_number_is_refused(shared_pool: RuntimeInfo, path: str, sent: str) -> None:
    with http(shared_pool) as web:
        assert web.get(f"/v1/{path}={sent}").status_code == 422


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server that waits for headers for a short time, and answers ``/slowly`` after twice that."""
    monkeypatch.setattr(request_limits, "HEADERS_S", SHORT_S)

    async def slowly(_request: Request) -> Response:
        await asyncio.sleep(2 * SHORT_S)
        return PlainTextResponse("done")

    async def sized(request: Request) -> Response:
        return PlainTextResponse(f"{len(await request.body())} bytes")

    routes = [Route("/slowly", slowly), Route("/v1/blobs/x", sized, methods=["PUT"])]
    limited = Middleware(request_limits.BodyLimiter, pause_s=SHORT_S)
    server = WebServer(Starlette(routes=routes, middleware=[limited]), grace_s=1)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    yield listener.getsockname()
    server.should_exit = True
    thread.join()


def closed_by_peer(connection: socket.socket) -> bool:
    connection.settimeout(10)
    while data := connection.recv(4096):
        assert data
    return True


@pytest.mark.parametrize(
    "sent", [b"", b"GET /slowly HTTP/1.1\r\nHost: x\r\nX-a: b"], ids=["nothing", "a half"]
)
def test_a_connection_without_a_whole_request_is_closed(impatient: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(impatient) as connection:
        connection.sendall(sent)
        assert closed_by_peer(connection)


def test_so_is_one_whose_second_request_stays_half(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient) as connection:
        connection.sendall(b"GET /slowly HTTP/1.1\r\nHost: x\r\n\r\n")
        while not connection.recv(4096).endswith(b"done"):
            time.sleep(0.01)
        connection.sendall(b"GET /slowly HT")
        assert closed_by_peer(connection)


def test_a_request_whose_body_stops_coming_is_answered_and_closed(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient) as connection:
        connection.sendall(b"PUT /v1/blobs/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nfour")
        connection.settimeout(10)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"stopped coming" in answer


def test_a_body_that_comes_in_parts_is_read(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient) as connection:
        connection.sendall(b"PUT /v1/blobs/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        for part in (b"the", b"whole", b"!"):
            time.sleep(SHORT_S / 4)
            connection.sendall(part)
        connection.settimeout(10)
        answer = b""
        while b"9 bytes" not in answer:
            answer += connection.recv(4096)


def test_a_connection_outlives_what_a_client_keeps_unused(shared_pool: RuntimeInfo) -> None:
    """A client that sent just when the server closes would lose its request."""
    host, port = shared_pool.url.removeprefix("http://").split(":")
    connection = HTTPConnection(host, int(port), timeout=10)
    connection.auto_open = 0  # no second connection
    connection.connect()
    for pause_s in (httpx.Limits().keepalive_expiry or 0) + 1, 0:
        connection.request("GET", "/v1/alive")
        assert connection.getresponse().read()
        time.sleep(pause_s)
    connection.close()


def test_a_request_that_is_answered_slowly_is_answered(impatient: tuple[str, int]) -> None:
    host, port = impatient
    with httpx.Client(base_url=f"http://{host}:{port}", trust_env=False) as web:
        for _ in range(2):
            assert web.get("/slowly").text == "done"


def test_uploads_under_way_count(tmp_path: Path) -> None:
    for name in ("store", "results"):
        (tmp_path / name).mkdir()
    store = BlobStore(tmp_path, bytes_max=3000)
    first, second = b"a" * 2000, b"b" * 2000

    async def halves(data: bytes, rest_may_come: asyncio.Event) -> AsyncIterator[bytes]:
        yield data[:1600]
        await rest_may_come.wait()
        yield data[1600:]

    async def both() -> None:
        rest_may_come = asyncio.Event()
        digest = blake3(first).hexdigest()
        uploading = asyncio.create_task(store.receive("ann", digest, halves(first, rest_may_come)))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="The pool keeps at most"):
            await store.receive("bob", blake3(second).hexdigest(), halves(second, rest_may_come))
        rest_may_come.set()
        assert await uploading == len(first)
        assert store.has("ann", digest)
        await store.receive(
            "bob", blake3(second).hexdigest(), halves(second, rest_may_come)
        )  # in place of the first
        assert (store.count, store.nbytes) == (1, len(second))

    asyncio.run(both())
    assert not any((tmp_path / "results").glob("upload-*"))
