"""A blocking WebSocket that is read by the thread that waits for a message.

The ``websockets`` package has the protocol (its sans-I/O layer) and a blocking connection of its own, which
reads in a thread. Handing each message from there to the waiting thread takes as long as a message takes
itself, and on few cores it keeps pool and worker from running meanwhile. Here a thread only answers pings
while no thread waits.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from djinn_lab.capture.host.interrupts import held
from djinn_lab.client.ways import open_way
from djinn_lab.system.sockets import wait_readable, wait_writable

READ_BYTES = 256 * 2**10
CLOSE_TIMEOUT_S = 1.0
LOOK_EVERY_S = 2.0
"""Well below the 20 s after which a server misses the answer to a ping."""
PING_AFTER_S = 20.0
"""Of silence. After twice as long, the other side counts as gone."""
PING_BYTES = 8


class WebSocket:
    """Opens on construction. Raises OSError, TimeoutError, or what ``websockets`` raises for a handshake that
    is refused; later ConnectionClosed. Any thread may send; one at a time should receive. ``tls``: what a
    connection by ``wss`` verifies before the headers are sent; default: the public authorities."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        open_timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        uri = parse_uri(url)
        self._protocol = ClientProtocol(uri, max_size=None)
        self._socket = open_way(url, open_timeout_s)
        self._lock = threading.RLock()
        """Of the protocol and the socket; nothing waits for data while holding it."""
        self._messages: deque[bytes | str] = deque()
        self._fragments: list[bytes] = []
        self._answered: set[bytes] = set()
        """Pings of :meth:`ping`."""
        self._heard_s = time.monotonic()
        self._closing_s: float | None = None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if uri.secure:
                context = tls or ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=uri.host)
            self._socket.setblocking(False)
            self._shake_hands(headers, time.monotonic() + open_timeout_s)
        except BaseException:
            self._socket.close()
            raise
        self._ended = threading.Event()
        self.when_looking: Callable[[], None] | None = None
        """Called every few seconds, in the thread that answers pings."""
        threading.Thread(
            target=_keep_alive, args=(weakref.ref(self), self._ended), name="keep alive", daemon=True
        ).start()

    def send(self, data: bytes) -> None:
        """Send a binary message. Raises ConnectionClosed."""
        with held(), self._lock:
            self._check_open()
            self._protocol.send_binary(data)
            self._flush()

    def recv(self, timeout_s: float | None = None) -> bytes | str:
        """Return the next message. Raises TimeoutError, or ConnectionClosed when none will come."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._messages:
            self._check_not_closed()
            if not self._wait_readable(_left(deadline_s)) and deadline_s is not None:
                raise TimeoutError
            self._read()
        return self._messages.popleft()

    def ping(self) -> None:
        """Wait until the other side has answered a ping. Raises ConnectionClosed."""
        # not drawn from the module random, whose state is the user's: a seeded notebook draws the same
        payload = os.urandom(PING_BYTES)
        with held(), self._lock:
            self._check_open()
            self._protocol.send_ping(payload)
            self._flush()
        while payload not in self._answered:
            self._check_not_closed()
            self._wait_readable(None)
            self._read()
        self._answered.discard(payload)

    def close(self, code: CloseCode = CloseCode.NORMAL_CLOSURE) -> None:
        """Close the connection; waits for the other side for a second at most."""
        self._ended.set()
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        try:
            with held(), self._lock:
                if self._protocol.state is State.OPEN:
                    self._protocol.send_close(code)
                    self._flush()
            while self._protocol.state is not State.CLOSED and time.monotonic() < deadline_s:
                self._wait_readable(_left(deadline_s))
                self._read()
        except ConnectionClosed:
            pass  # the other side was gone before
        finally:
            self._socket.close()

    # -- parts ---------------------------------------------------------------------------------------------

    def _shake_hands(self, headers: Mapping[str, str], deadline_s: float) -> None:
        request = self._protocol.connect()
        for name, value in headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self._flush()
        while self._protocol.state is State.CONNECTING and self._protocol.handshake_exc is None:
            if not self._wait_readable(_left(deadline_s)):
                raise TimeoutError("timed out during the opening handshake")
            self._read()
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc

    def _check_open(self) -> None:
        if self._protocol.state is not State.OPEN:
            self._end()
            self._check_not_closed()

    def _check_not_closed(self) -> None:
        if self._protocol.state is State.CLOSING:
            if self._closing_s is None:
                self._closing_s = time.monotonic()
            if time.monotonic() > self._closing_s + CLOSE_TIMEOUT_S:
                self._end()
        if self._protocol.state is State.CLOSED:
            raise self._protocol.close_exc

    def _wait_readable(self, timeout_s: float | None) -> bool:
        """Wait outside of the lock; an interrupt loses nothing here."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        if self._protocol.state is State.CLOSING:
            timeout_s = CLOSE_TIMEOUT_S if timeout_s is None else min(timeout_s, CLOSE_TIMEOUT_S)
        return wait_readable(self._socket, timeout_s)

    def _read(self) -> None:
        """Take what has arrived, without waiting, and answer pings."""
        with held(), self._lock:
            if self._protocol.state is State.CLOSED:
                return
            try:
                data = self._socket.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except OSError:
                data = b""
            if not data:
                self._end()
                return
            self._heard_s = time.monotonic()
            self._protocol.receive_data(data)
            for event in self._protocol.events_received():
                if isinstance(event, Frame):
                    self._take(event)
                else:
                    assert isinstance(event, Response)
            try:
                self._flush()
            except ConnectionClosed:
                return  # the thread that waits gets the error

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PONG:
            self._answered.add(bytes(frame.data))
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT) and (self._fragments or not frame.fin):
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                self._messages.append(b"".join(self._fragments))
                self._fragments = []
        elif frame.opcode is Opcode.BINARY:
            self._messages.append(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:
            self._messages.append(bytes(frame.data).decode(errors="replace"))

    def _flush(self) -> None:
        """Send what the protocol has to say. Raises ConnectionClosed."""
        for data in self._protocol.data_to_send():
            if not data:
                continue  # our side of the connection may be shut, which the server does first
            view = memoryview(data)
            try:
                while view:
                    try:
                        view = view[self._socket.send(view) :]
                    except (BlockingIOError, ssl.SSLWantWriteError):
                        if not wait_writable(self._socket, 2 * PING_AFTER_S):
                            raise TimeoutError from None  # as deaf as a server that answers no ping
            except OSError:
                self._end()
                self._check_not_closed()

    def _end(self) -> None:
        """No more data will come."""
        if self._protocol.state is not State.CLOSED:
            self._protocol.receive_eof()

    def _look(self) -> None:
        """From time to time, in a thread: answer pings, and notice that the other side is gone."""
        self._read()
        silent_s = time.monotonic() - self._heard_s
        with self._lock:
            if self._protocol.state is not State.OPEN or silent_s < PING_AFTER_S:
                return
            if silent_s > 2 * PING_AFTER_S:
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
                return
            self._protocol.send_ping(os.urandom(PING_BYTES))
            self._flush()


def _left(deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())


def _keep_alive(reference: weakref.ref[WebSocket], ended: threading.Event) -> None:
    while not ended.wait(LOOK_EVERY_S):
        connection = reference()
        if connection is None:
            return
        try:
            connection._look()
            if connection.when_looking is not None:
                connection.when_looking()
        except (OSError, ConnectionClosed):
            return  # the next send or wait raises it
        del connection
