"""The session's WebSocket: handshake, and messages in order."""

from __future__ import annotations

import os
import ssl
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode

from djinn_lab.capture.host.interrupts import TICK_S, Stopped, check, whole
from djinn_lab.client.trust import not_proven, tls_context
from djinn_lab.client.ways import by_proxy
from djinn_lab.client.websocket import WebSocket
from djinn_lab.errors import (
    AuthenticationError,
    PoolLost,
    PoolNotFound,
    PoolSilent,
    Refused,
    SessionLost,
    VersionMismatch,
)
from djinn_lab.jobs import Terms
from djinn_lab.protocol import messages
from djinn_lab.protocol.compatibility import unsupported_options
from djinn_lab.protocol.messages import CODES_MAX, UNKNOWN_TOKEN
from djinn_lab.protocol.version import VERSION
from djinn_lab.srg.wire import ProgramSender
from djinn_lab.system.host import host_id

CONNECT_TIMEOUT_S = 10.0
Answer = TypeVar("Answer", messages.BlobsMissing, messages.PhaseAnswered)
START_AGAIN = "Start one with `djinn-lab pool start`, then run the cell again."


class PoolConnection:
    """Raises errors of :mod:`djinn_lab.errors` only. Its callers hold
    (:mod:`djinn_lab.capture.host.interrupts`)."""

    def __init__(
        self,
        url: str,
        token: str,
        name: str,
        torch_version: str,
        session: str | None = None,
        certificate: str | None = None,
    ) -> None:
        self.url = url
        self.tls = tls_context(url, certificate)
        self._backlog: deque[messages.FromPool] = deque()
        self._unwanted: Counter[type[messages.FromPool]] = Counter()
        """Answers to come that no caller waits for any more, since an exception arrived."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self._stopped = False
        refusals = []
        for version in reversed(messages.CLIENT_VERSIONS):
            self._websocket = _open(url, token, self.tls)
            hello = messages.Hello(
                version,
                VERSION,
                torch_version,
                host_id(),
                name,
                session,
                latest_only=True,
                process=os.getpid(),
            )
            try:
                self.send(hello)
                answer = self.receive(CONNECT_TIMEOUT_S)
            except TimeoutError:
                self._give_up(session)
                waited = f"for {CONNECT_TIMEOUT_S:.0f} s"
                raise PoolSilent(
                    f"the pool at {url} has taken the connection, and has not answered {waited}.",
                    "Perhaps its machine is overloaded. Run the cell again.",
                ) from None
            except BaseException:
                self._give_up(session)
                raise
            if isinstance(answer, messages.Welcome):
                self.welcome = answer
                return
            self.close()
            assert isinstance(answer, messages.RequestRefused)
            refusals.append(answer)
            if answer.kind != "version":
                break
        raise _refusal(refusals[0])

    def _give_up(self, session: str | None) -> None:
        """Close a connection on which no Welcome came; the pool may have opened the session on it. A new one
        is of no use. One that was to be resumed waits for its client, as after a broken connection."""
        if session is not None:
            self._websocket.close(CloseCode.INTERNAL_ERROR)
            return
        with suppress(PoolLost):
            self.send(messages.CloseSession())
        self.close()

    def when_looking(self, call: Callable[[], None]) -> None:
        """Call it every few seconds, in a thread of the connection's own."""
        self._websocket.when_looking = call

    @property
    def knows_deltas(self) -> bool:
        """Return whether the pool reads the stream of programs."""
        return self.welcome.protocol_version >= 6

    @property
    def holds_followers(self) -> bool:
        """Return whether the pool takes a segment while the one before it runs."""
        return self.welcome.protocol_version >= 8

    @property
    def can_resume(self) -> bool:
        """Return whether, after the connection broke, another one may be opened to the same session: the
        network comes back, or the pool is started again. A pool that was stopped has ended its sessions."""
        return self.welcome.protocol_version >= 9 and not self._stopped

    @property
    def same_host(self) -> bool:
        """Return whether the pool is on this machine: no network is between."""
        return self.welcome.blob_directory is not None

    @property
    def takes_unhashed(self) -> bool:
        """Return whether the pool accepts uploads that have no digest yet."""
        return self.welcome.protocol_version >= 7

    @property
    def joins_transfers(self) -> bool:
        """Return whether the pool takes and gives several tensors in one request."""
        return self.welcome.protocol_version >= 11

    @property
    def answers_signals(self) -> bool:
        """Return whether the pool answers signals."""
        return self.welcome.protocol_version >= 3

    def refuse_unknown(self, terms: Terms) -> None:
        """Raise VersionMismatch for terms that the pool would ignore, since it speaks an older protocol."""
        spoken = self.welcome.protocol_version
        unknown = unsupported_options(terms, spoken)
        if unknown:
            raise VersionMismatch(
                f"the pool at {self.url} (djinn-lab {self.welcome.server_version}) speaks protocol {spoken}, "
                f"which does not know {' and '.join(unknown)}; this djinn-lab speaks protocol "
                f"{messages.PROTOCOL_VERSION}.",
                "Leave that out, or install the same djinn-lab version on both sides.",
            )

    def send(self, message: messages.ToPool) -> None:
        data = messages.encode(message)
        self.bytes_sent += len(data)
        try:
            self._websocket.send(data)
        except (ConnectionClosed, OSError) as error:
            raise self._lost(error) from None

    def ping(self) -> None:
        """Wait for the pool's WebSocket to answer: no message takes less."""
        try:
            self._websocket.ping()
        except (ConnectionClosed, OSError) as error:
            raise self._lost(error) from None

    def receive(self, timeout_s: float | None = None) -> messages.FromPool:
        """Return the next message. Raises TimeoutError when none comes in time."""
        if self._backlog:
            return self._backlog.popleft()
        return self._next(timeout_s)

    @whole
    def peek(self) -> Sequence[messages.FromPool]:
        """Messages that have arrived and were not received yet."""
        with suppress(TimeoutError):
            while True:
                self._backlog.append(self._next(0))
        return tuple(self._backlog)

    @whole
    def await_message(self, timeout_s: float) -> None:
        """Wait until a message has arrived, or the time is over; it stays for :meth:`receive`."""
        with suppress(TimeoutError):
            self._backlog.append(self._next(timeout_s))

    def take_updates(self) -> Sequence[messages.JobUpdate]:
        """Return the updates that have arrived; other messages stay for :meth:`receive`."""
        with suppress(PoolLost):
            self.peek()
        updates = [message for message in self._backlog if isinstance(message, messages.JobUpdate)]
        self._backlog = deque(one for one in self._backlog if not isinstance(one, messages.JobUpdate))
        return updates

    def receive_missing(self) -> messages.BlobsMissing:
        """Return the answer to QueryBlobs; messages before it wait for :meth:`receive`."""
        return self._receive_a(messages.BlobsMissing)

    def receive_phase(self) -> messages.PhaseAnswered:
        """Return the answer to SignalPhase; messages before it wait for :meth:`receive`."""
        if not self.answers_signals:
            return messages.PhaseAnswered("accepted", "this pool does not say")
        return self._receive_a(messages.PhaseAnswered)

    def _receive_a(self, kind: type[Answer]) -> Answer:
        while True:
            try:
                check()
                message = self._next(TICK_S)
            except TimeoutError:
                continue
            except Stopped:
                self._unwanted[kind] += 1
                raise
            if isinstance(message, kind):
                return message
            self._backlog.append(message)

    def _next(self, timeout_s: float | None) -> messages.FromPool:
        try:
            data = self._websocket.recv(timeout_s)
        except TimeoutError:
            raise
        except (ConnectionClosed, OSError) as error:
            raise self._lost(error) from None
        if isinstance(data, str):
            raise Refused(
                "the pool sent text where MessagePack was expected.", "Is this URL a Djinn Lab pool?"
            )
        self.bytes_received += len(data)
        try:
            message: messages.FromPool = messages.decode_from_pool(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(f"the pool sent a message that this client cannot read: {error}") from None
        if self._unwanted[type(message)]:
            self._unwanted[type(message)] -= 1
            return self._next(timeout_s)
        return message

    def close(self) -> None:
        self._websocket.close()

    def _lost(self, error: Exception) -> PoolLost:
        ended = getattr(error, "rcvd", None)
        if getattr(ended, "code", None) == messages.CLOSE_SESSION:
            why = getattr(ended, "reason", "") or "by `djinn-lab close`, or over its API"
            return SessionLost(
                f"the session was closed on the pool ({why}).",
                "Its values there are gone: run the cells that made them again. Plain variables and tensors "
                "that were fetched are intact.",
            )
        self._stopped = self._stopped or getattr(ended, "code", None) == messages.CLOSE_POOL
        reason = (
            "it was stopped" if self._stopped else getattr(ended, "reason", "") or "the connection closed"
        )
        return PoolLost(
            f"the pool at {self.url} went away ({reason}).",
            "Plain variables and tensors that were fetched or only uploaded are intact; the rest has "
            "to be computed again. " + START_AGAIN,
        )


def _open(url: str, token: str, tls: ssl.SSLContext | None) -> WebSocket:
    address = url.replace("http", "ws", 1).rstrip("/") + "/v1/session"
    try:
        return WebSocket(address, {"Authorization": f"Bearer {token}"}, CONNECT_TIMEOUT_S, tls)
    except InvalidStatus as error:
        if error.response.status_code == 403:
            raise AuthenticationError(
                f"the pool at {url} lets this token look but not run cells.{_said(error.response.body)}",
                "Ask the pool's administrator for a token with the role user, without scopes or with cells.",
            ) from None
        if error.response.status_code == 401:
            raise AuthenticationError(
                f"the pool at {url} refused the token.{_said(error.response.body)}",
                "Set DJINN_TOKEN to your token for that pool (its administrator makes one).",
            ) from None
        if error.response.status_code == 503:
            raise PoolSilent(
                f"the pool at {url} stands by for another one on its database, or starts.",
                "Set DJINN_POOL to the addresses of all of them, separated by commas.",
            ) from None
        if error.response.status_code == 429:
            raise Refused(f"the pool at {url} takes no more.{_said(error.response.body)}") from None
        raise PoolNotFound(
            f"{url} answered with HTTP {error.response.status_code}, not as a Djinn Lab pool does.",
            "Check DJINN_POOL.",
        ) from None
    except InvalidURI as error:
        raise PoolNotFound(f"{url} is no address of a pool ({error}).", "Check DJINN_POOL.") from None
    except (OSError, ConnectionClosed, InvalidHandshake) as error:
        unproven = not_proven(url, error)
        if unproven is not None:
            raise unproven from None
        host = urlsplit(url).netloc or url
        raise PoolSilent(f"no pool answers at {host}{by_proxy(url)} ({error}).", START_AGAIN) from None


def _said(body: bytes | bytearray | None) -> str:
    """Return what the pool knows of the refused token, with a space before it; nothing of an unknown one."""
    try:
        detail = msgspec.json.decode(body or b"", type=dict[str, str])["detail"]
    except (msgspec.DecodeError, KeyError):
        return ""
    return "" if detail == UNKNOWN_TOKEN else f" {detail}"


def _refusal(answer: messages.RequestRefused) -> Exception:
    kinds: dict[str, type[AuthenticationError | VersionMismatch | Refused]] = {
        "token": AuthenticationError,
        "version": VersionMismatch,
    }
    return kinds.get(answer.kind, Refused)(answer.message)


class SubmissionEncoder:
    """Encode the submissions of one connection. ``deltas``: whether the pool reads the stream of programs,
    and codes by number. What was made for a message counts as sent only after :meth:`arrived`."""

    def __init__(self, deltas: bool) -> None:
        self._deltas = deltas
        self._programs = ProgramSender()
        self._codes: dict[str, int] = {}
        self._next_code = 0
        self._new_code: str | None = None

    def saw_state(self, state: bytes) -> None:
        """This random state came from the pool."""
        self._programs.saw_state(state)

    def program(self, encoded: bytes) -> tuple[bytes, bool, int]:
        """Return the bytes to send, whether they are of the stream, and how many the whole program has."""
        streamed = self._programs.encode(encoded) if self._deltas else None
        if streamed is None:
            return encoded, False, len(encoded)
        return streamed, True, len(encoded)

    def code(self, text: str) -> tuple[str, int | None]:
        """Return what to send of a cell's source: text and number."""
        self._new_code = None
        if not self._deltas or not text:
            return text, None
        known = self._codes.get(text)
        if known is not None:
            return "", known
        self._new_code = text
        return text, self._next_code

    def arrived(self) -> None:
        """The message with the last program and code went out."""
        self._programs.arrived()
        if self._new_code is not None:
            number, self._next_code = self._next_code, (self._next_code + 1) % CODES_MAX
            self._codes = {code: other for code, other in self._codes.items() if other != number}
            self._codes[self._new_code] = number
            self._new_code = None
