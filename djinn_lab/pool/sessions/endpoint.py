"""The WebSocket of one session: authentication, messages, end."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import sqlalchemy as sa
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

import djinn_lab.protocol.messages as protocol
from djinn_lab import memory
from djinn_lab.errors import Refused
from djinn_lab.jobs import IllegalEvent
from djinn_lab.pool.authentication import Authentication, Role, User
from djinn_lab.pool.blobs.names import checked_digest, checked_name
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.audit_log import host_of
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.scopes import SESSION_SOCKET, lacks
from djinn_lab.pool.sessions.pacing import SubmissionGate
from djinn_lab.pool.sessions.registry import ClientLink, ClientSession
from djinn_lab.pool.user_limits import Connections, OverLimit, RequestRates, UserLimits
from djinn_lab.protocol.agreement import what_to_update
from djinn_lab.protocol.version import VERSION
from djinn_lab.system.host import host_id

HELLO_BYTES_MAX = 64 * 2**10
HELLO_TIMEOUT_S = 10.0
TORCH_CHARS_MAX = 40
"""Of the version of a client's torch, as messages name it."""
CLOSE_GRACE_S = 5.0
WEAK_ADVICE = (
    "`djinn-lab doctor` on its machine shows what is missing; its owner may accept this with "
    "`pool start --accept-weak-isolation`."
)
BROKEN = (1001, 1005, 1006, 1011, 1012, 1013, 1014)
"""Close codes of connections that no client ended: its network, its process, its pings or a proxy did."""
RESUMING_VERSION = 9
VERSION_CHARS_MAX = 40
"""Clients of older protocols open no second connection to a session."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no message."""
CLOSE_REFUSED = 4400
CLOSE_REASON_BYTES_MAX = 123
"""RFC 6455: a control frame has 125 bytes, and the code takes two."""
"""WebSocket close code after a Refused message."""


class RefusedByPool(Exception):
    """End the connection with a Refused message. ``kind``: as in the protocol."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Greeting(msgspec.Struct):
    """Hold what every version of the protocol has in its first message."""

    type: str
    protocol_version: int
    client_version: object = None


class SessionEndpoint:
    """Serves ``/v1/session``."""

    def __init__(
        self,
        driver: Driver,
        authentication: Authentication,
        blobs: BlobStore,
        limits: UserLimits,
        rates: RequestRates,
    ) -> None:
        self._limits, self._rates = limits, rates
        self._connections = Connections(limits.connections)
        self._driver = driver
        self._authentication = authentication
        self._blobs = blobs
        self._host = host_id()
        self._submissions = SubmissionGate()
        self._audit = driver.accounting.audit

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one connection, from upgrade to end."""
        header = websocket.headers.get("authorization")
        user = self._authentication.user_of(header)
        if user is None:
            denial = self._authentication.denial(header)
            self._audit.stranger(websocket.client, SESSION_SOCKET, 401, SESSION_SOCKET, denial)
            await websocket.send_denial_response(JSONResponse({"detail": denial.detail}, status_code=401))
            return
        detail = "A viewer runs no cells." if user.role < Role.USER else lacks(user.scopes, SESSION_SOCKET)
        if detail is not None:
            self._audit.refused(user.name, SESSION_SOCKET, 403, detail, SESSION_SOCKET)
            await websocket.send_denial_response(JSONResponse({"detail": detail}, status_code=403))
            return
        try:
            with self._connections.one_of(user.name):
                await self._serve(websocket, user)
        except OverLimit as refusal:
            self._audit.refused(user.name, SESSION_SOCKET, refusal.status, refusal.message, SESSION_SOCKET)
            denial_response = JSONResponse({"detail": str(refusal)}, status_code=refusal.status)
            await websocket.send_denial_response(denial_response)

    async def _serve(self, websocket: WebSocket, user: User) -> None:
        await websocket.accept()
        try:
            session, link = await self._open(websocket, user)
        except RefusedByPool as refusal:
            status = 429 if refusal.kind == "limit" else 403
            self._audit.refused(
                user.name, SESSION_SOCKET, status, str(refusal), f"{SESSION_SOCKET} {refusal.kind}"
            )
            await _refuse(websocket, refusal)
            return
        except WebSocketDisconnect:
            return
        sender = asyncio.get_running_loop().create_task(
            _send_all(websocket, link), name=f"send {session.session}"
        )
        sender.add_done_callback(lambda _: link.stopped())
        broke = False
        try:
            broke = await self._listen(websocket, session, link)
        except RefusedByPool as refusal:
            about = f"session {session.session}: {refusal}"
            self._audit.refused(user.name, "WebSocket message", 422, about, refusal.kind)
            link.send(protocol.RequestRefused(refusal.kind, str(refusal)))
        finally:
            if session.link is link and broke and link.protocol_version >= RESUMING_VERSION:
                self._driver.await_client(session)
            elif session.link is link:
                self._driver.detach(session)
            link.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sender, CLOSE_GRACE_S)

    async def _open(self, websocket: WebSocket, user: User) -> tuple[ClientSession, ClientLink]:
        """Read the Hello and answer it."""
        try:
            data = await asyncio.wait_for(_receive(websocket), HELLO_TIMEOUT_S)
        except TimeoutError:
            raise RefusedByPool("message", f"No Hello came within {HELLO_TIMEOUT_S:.0f} s.") from None
        hello = _read_hello(data)
        same_host = hello.host == self._host
        delayed = self._driver.accounting.durability.delayed
        link = ClientLink(hello.protocol_version, hello.latest_only, user.token, delayed)
        session = self._resume(hello, user, link) if hello.session else None
        resumed = session is not None
        if session is None:
            weak = self._driver.too_weak(user.name)
            if weak is not None:
                raise RefusedByPool("session", f"Another user works on this pool, and {weak}. {WEAK_ADVICE}")
            if reason := delayed():
                raise RefusedByPool("session", f"No session can be opened: {reason}.")
            now_s = self._driver.core.clock.now_s()
            self._check_sessions(user)
            session = self._driver.registry.add(
                user, hello.name[: protocol.NAME_CHARS_MAX], same_host, now_s, link
            )
            session.process = hello.process
            self._driver.handle(memory.SessionOpened(now_s, session.session, user.name))
        session.torch_version = hello.torch_version[:TORCH_CHARS_MAX]
        self._driver.accounting.sessions.changed(session)
        action = "session resumed" if resumed else "session opened"
        about = f"{session.session} {session.name} from {host_of(websocket.client)} by {user.way}"
        self._audit.note(user.name, action, about)
        directory = self._blobs.open_session(session.session)
        link.send(
            protocol.Welcome(
                protocol_version=hello.protocol_version,
                server_version=VERSION,
                session=session.session,
                user=user.name,
                pool=self._driver.core.pool,
                resumed=resumed,
                blob_directory=str(directory) if same_host else None,
                devices=self._described_devices(),
            ),
            self._driver.accounting.durability.commit(),
        )
        return session, link

    def _described_devices(self) -> list[protocol.DeviceInfo]:
        """Describe the devices, with what operators say that they draw."""
        watts = {view.device: view.watts for view in self._driver.core.queue.devices()}
        return [
            msgspec.structs.replace(info, watts=watts.get(info.device)) for info in self._driver.fleet.infos()
        ]

    def _check_sessions(self, user: User) -> None:
        """Raise RefusedByPool when the user has as many sessions as one may."""
        count = sum(session.user == user.name for session in self._driver.registry)
        if count >= self._limits.sessions:
            raise RefusedByPool(
                "limit",
                f"{user.name} has {count} sessions, which is the limit. Close some that are not used: "
                "djinn-lab sessions lists them, djinn-lab close SESSION frees one.",
            )

    def _resume(self, hello: protocol.Hello, user: User, link: ClientLink) -> ClientSession | None:
        """Find the session that the client asks for, None when it no longer exists. A second connection
        replaces the first."""
        session = self._driver.registry.get(hello.session or "")
        if session is None:
            return None
        if session.user != user.name:
            raise RefusedByPool("session", f"Session {hello.session} belongs to another user.")
        detached = session.link is None and not session.awaited
        if session.link is not None:
            old = session.link
            self._driver.await_client(session)
            old.send(protocol.RequestRefused("session", "The session was opened by another connection."))
            old.close()
        now_s = self._driver.core.clock.now_s()
        session.link, session.process, session.awaited = link, hello.process, False
        session.same_host = hello.host == self._host
        session.connected_at = session.last_seen = now_s
        if detached:
            self._driver.handle(memory.SessionResumed(now_s, session.session))
        return session

    async def _listen(self, websocket: WebSocket, session: ClientSession, link: ClientLink) -> bool:
        """Handle messages until the connection ends or the session is taken over or closed. Return whether
        the connection broke: its client did not end it."""
        while True:
            await link.wait_below_limit()  # what it sends meanwhile waits in the socket, too
            try:
                data = await _receive(websocket)
            except WebSocketDisconnect as end:
                return end.code in BROKEN
            if session.link is not link:
                return False
            try:
                message = protocol.decode_to_pool(data)
            except UNREADABLE as error:
                raise RefusedByPool(
                    "message", f"This is not a message of protocol {link.protocol_version}: {error}"
                ) from None
            now_s = session.last_seen = self._driver.core.clock.now_s()
            wait_s = max(session.pace.take(message, now_s), self._rates.take(session.user, now_s))
            if wait_s > 0:  # what it sends meanwhile waits in the socket, and fills that up
                await asyncio.sleep(wait_s)
                if session.link is not link:
                    return False
            try:
                if isinstance(message, protocol.CloseSession):
                    self._driver.close(session)
                    return False
                await self._handle(session, link, message)
            except Refused as refusal:
                raise RefusedByPool("message", refusal.message) from None

    async def _handle(self, session: ClientSession, link: ClientLink, message: object) -> None:
        if not isinstance(message, protocol.SignalPhase):
            self._driver.signals.settle(session)
        match message:
            case protocol.SubmitSegment():
                submit = await link.decoder.complete(message)
                await _settle_uploads(session)
                await self._submissions.wait_for_turn()
                await self._driver.submit(session, submit)
            case protocol.QueryBlobs():
                await _settle_uploads(session)
                missing = self._query(session, message.digests)
                session.send(protocol.BlobsMissing(missing, self._query_sketches(session, message.sketches)))
            case protocol.BlobStored():
                self._adopt(session, message)
            case protocol.FinishJob():
                self._driver.finish(session, message)
            case protocol.CancelJob():
                self._cancel(session, message)
            case protocol.SignalPhase():
                answers = link.protocol_version >= 3
                self._driver.signals.put(session, message, link.send if answers else _discard_answer)
            case protocol.ReleaseValues():
                self._driver.release(session, message.values)
            case protocol.Hello():
                raise Refused("A second Hello came on an open session.")

    def _query(self, session: ClientSession, digests: list[str]) -> list[str]:
        """List the absent blobs; the others are pinned until the next submit is in."""
        missing = []
        for digest in dict.fromkeys(digests):
            if self._blobs.has(session.user, checked_digest(digest)):
                self._blobs.pin(digest)
                session.pins.append(digest)
            else:
                missing.append(digest)
        return missing

    def _query_sketches(self, session: ClientSession, sketches: list[str]) -> list[str]:
        """List the absent sketches. Blobs with the others will be asked for by digest, so they get one
        now."""
        missing = []
        for sketch in dict.fromkeys(sketches):
            if not self._blobs.has_like(session.user, sketch):
                missing.append(sketch)
            elif sketch not in session.verifying:
                session.verifying[sketch] = asyncio.get_running_loop().create_task(
                    self._blobs.identify(sketch), name=f"identify {sketch}"
                )
        return missing

    def _adopt(self, session: ClientSession, stored: protocol.BlobStored) -> None:
        """Verify a file that the client wrote, beside other messages."""
        name = checked_name(stored.digest)
        if not session.same_host:
            raise Refused(
                "Only a client on the pool's host can write tensor files; send PUT /v1/blobs instead."
            )

        async def verify() -> None:
            try:
                await self._blobs.adopt(session.user, session.session, name, stored.nbytes)
            except Refused as refusal:
                session.rejected[name] = refusal.message
            except OSError as error:
                session.rejected[name] = f"The file {name} cannot be read: {error}."
            else:
                session.rejected.pop(name, None)
                self._blobs.pin(name)
                session.pins.append(name)

        session.verifying[name] = asyncio.get_running_loop().create_task(verify(), name=f"verify {name}")

    def _cancel(self, session: ClientSession, cancel: protocol.CancelJob) -> None:
        """Cancel a job of this session; one that is over needs nothing."""
        job = self._driver.core.queue.job(cancel.job)
        if job is not None and job.session == session.session:
            with contextlib.suppress(IllegalEvent):
                self._driver.cancel(cancel.job, f"by {session.user}")
                self._audit.note(session.user, "job cancelled", f"{cancel.job} of session {session.session}")
        elif job is not None:
            about = f"job {cancel.job} is not of session {session.session}"
            self._audit.refused(session.user, "cancel", 403, about, "cancel")


def _discard_answer(_answer: protocol.PhaseAnswered) -> None:
    """Drop the answer to a client of a protocol without answers to signals."""


def _version_of(greeting: Greeting) -> str:
    """Return the client's package version in brackets, with a space before it; nothing for what is none."""
    version = greeting.client_version
    is_one = isinstance(version, str) and len(version) <= VERSION_CHARS_MAX and version.isprintable()
    return f" (djinn-lab {version})" if is_one else ""


def _spoken() -> str:
    return " and ".join(map(str, protocol.POOL_VERSIONS))


def _read_hello(data: bytes) -> protocol.Hello:
    """Decode the first message. The version is compared before anything else is read."""
    if len(data) > HELLO_BYTES_MAX:
        raise RefusedByPool(
            "message", f"The first message has {len(data)} bytes; a Hello has at most {HELLO_BYTES_MAX}."
        )
    try:
        greeting = msgspec.msgpack.decode(data, type=Greeting)
    except UNREADABLE as error:
        raise RefusedByPool("message", f"The first message is not a Hello: {error}") from None
    if greeting.type != "hello":
        raise RefusedByPool("message", f"The first message must be a Hello, not {greeting.type[:40]!r}.")
    if greeting.protocol_version not in protocol.POOL_VERSIONS:
        raise RefusedByPool(
            "version",
            f"The client{_version_of(greeting)} speaks protocol {greeting.protocol_version}, the pool "
            f"(djinn-lab {VERSION}) speaks protocol {_spoken()}. "
            + what_to_update(protocol.POOL_VERSIONS, VERSION, greeting.protocol_version),
        )
    try:
        hello = protocol.decode_to_pool(data)
    except UNREADABLE as error:
        raise RefusedByPool("message", f"The Hello is malformed: {error}") from None
    assert isinstance(hello, protocol.Hello)
    return hello


async def _settle_uploads(session: ClientSession) -> None:
    """Wait until announced uploads are verified."""
    if session.verifying:
        verifying, session.verifying = session.verifying, {}
        await asyncio.gather(*verifying.values())


async def _receive(websocket: WebSocket) -> bytes:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    data = message.get("bytes")
    if data is None:
        raise RefusedByPool("message", "A text frame came; the protocol is binary.")
    assert isinstance(data, bytes)
    return data


async def _send_all(websocket: WebSocket, link: ClientLink) -> None:
    """Send what is put into the link until it is closed."""
    message: protocol.FromPool | None = None
    while True:
        try:
            message = await link.next()
            if message is None:
                break
            await websocket.send_bytes(protocol.encode(message))
        except (WebSocketDisconnect, RuntimeError):
            return
        except sa.exc.SQLAlchemyError:
            break  # a client receives only what is in the database
        if isinstance(message, protocol.RequestRefused):
            break
    if websocket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            refused = isinstance(message, protocol.RequestRefused)
            reason = link.close_reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
            await websocket.close(CLOSE_REFUSED if refused else link.close_code, reason or None)


async def _refuse(websocket: WebSocket, refusal: RefusedByPool) -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await websocket.send_bytes(protocol.encode(protocol.RequestRefused(refusal.kind, str(refusal))))
        await websocket.close(CLOSE_REFUSED)
