"""The client's WebSocket beside a server of the ``websockets`` package and a pool."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from djinn_lab.client import websocket
from djinn_lab.client.websocket import WebSocket

HEADERS = {"Authorization": "Bearer token"}


@contextmanager
def server(handler: object, refuse: bool = False) -> Iterator[str]:
    def check(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(403, "no") if refuse else None

    with serve(handler, "127.0.0.1", 0, process_request=check, max_size=None, compression=None) as running:  # type: ignore[arg-type]
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{running.socket.getsockname()[1]}/v1/session"
        finally:
            running.shutdown()
            thread.join()


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 70_000, 3_000_000])
def test_messages_of_every_size_come_back(size: int) -> None:
    with server(echo) as url:
        connection = WebSocket(url, HEADERS, 5)
        connection.send(bytes(size))
        assert connection.recv(10) == bytes(size)
        connection.close()


def test_fragments_make_one_message_and_text_is_text() -> None:
    def talk(connection: ServerConnection) -> None:
        connection.send([b"a", b"bc", b""])
        connection.send("words")
        connection.recv()

    with server(talk) as url:
        connection = WebSocket(url, HEADERS, 5)
        assert [connection.recv(5), connection.recv(5)] == [b"abc", "words"]
        connection.send(b"done")
        connection.close()


def test_no_message_in_time_is_a_timeout_and_loses_nothing() -> None:
    with server(echo) as url:
        connection = WebSocket(url, HEADERS, 5)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                connection.recv(0)
        connection.send(b"x")
        assert connection.recv(5) == b"x"
        connection.ping()
        connection.close()


def test_a_close_is_raised_with_its_code_after_the_messages_before_it() -> None:
    def talk(connection: ServerConnection) -> None:
        connection.send(b"last")
        connection.close(4410, "closed")

    with server(talk) as url:
        connection = WebSocket(url, HEADERS, 5)
        assert connection.recv(5) == b"last"
        for action in (lambda: connection.recv(5), lambda: connection.send(b"x"), connection.ping):
            with pytest.raises(ConnectionClosed) as closed:
                action()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4410, "closed")
        connection.close()


def test_a_server_that_dies_is_raised_in_the_waiting_thread() -> None:
    def die(connection: ServerConnection) -> None:
        connection.recv()
        connection.socket.close()

    with server(die) as url:
        connection = WebSocket(url, HEADERS, 5)
        connection.send(b"x")
        with pytest.raises(ConnectionClosed):
            connection.recv(5)
        connection.close()


def test_a_refused_handshake_has_its_status() -> None:
    with server(echo, refuse=True) as url, pytest.raises(InvalidStatus) as refused:
        WebSocket(url, HEADERS, 5)
    assert refused.value.response.status_code == 403


def test_pings_are_answered_while_no_thread_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "LOOK_EVERY_S", 0.05)
    answered = threading.Event()

    def talk(connection: ServerConnection) -> None:
        connection.ping().wait()
        answered.set()
        connection.send(b"still here")
        connection.recv()

    with server(talk) as url:
        connection = WebSocket(url, HEADERS, 5)
        assert answered.wait(5)
        assert connection.recv(5) == b"still here"
        connection.send(b"done")
        connection.close()


def test_a_silent_server_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither sends nor answers pings, as after the network was cut."""
    monkeypatch.setattr(websocket, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(websocket, "PING_AFTER_S", 0.2)
    silent = threading.Event()

    def talk(connection: ServerConnection) -> None:
        connection.recv_events_thread.join(0)
        connection.protocol.receive_data = lambda data: None  # type: ignore[method-assign]
        silent.wait(10)
        connection.socket.close()

    with server(talk) as url:
        connection = WebSocket(url, HEADERS, 5)
        began_s = time.monotonic()
        with pytest.raises(ConnectionClosed):
            connection.recv(10)
        assert time.monotonic() - began_s < 9
        silent.set()
        connection.close()


def test_a_server_that_reads_nothing_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_AFTER_S", 0.1)
    read = threading.Event()

    def deaf(connection: ServerConnection) -> None:
        read.wait(10)

    with server(deaf) as url:
        connection = WebSocket(url, HEADERS, 5)
        try:
            with pytest.raises(ConnectionClosed):
                for _ in range(100):
                    connection.send(bytes(10**6))
        finally:
            read.set()
            connection.close()


def test_a_forgotten_connection_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "LOOK_EVERY_S", 0.02)
    with server(echo) as url:
        before = {thread for thread in threading.enumerate() if thread.name == "keep alive"}
        connection = WebSocket(url, HEADERS, 5)
        mine = {thread for thread in threading.enumerate() if thread.name == "keep alive"} - before
        assert len(mine) == 1
        connection._socket.close()
        del connection
        gc.collect()
        (thread,) = mine
        thread.join(5)
        assert not thread.is_alive()
