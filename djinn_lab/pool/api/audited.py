"""The audit of requests: each that changes something, and each that is refused.

A row is committed before the answer leaves, as is all that an answer states.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from djinn_lab.pool.authentication import Authentication
from djinn_lab.pool.bookkeeping.audit_log import DETAIL_CHARS_MAX, AuditLog

READING = frozenset(("GET", "HEAD", "OPTIONS"))
REFUSING = frozenset((401, 403, 413, 429))
"""Statuses by which a request is refused that only reads; others say that there is no such thing."""
NO_CHANGES = ("/v1/blobs", "/v1/results", "/v1/link")
HINT = "/phase"
WITHOUT_BODY = "/v1/notebooks"
"""Whose bodies are whole notebooks, which the database keeps anyway."""
KIND_PARTS = 3
"""Parts of a path that distinguish refusals."""


class Audited:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, authentication: Authentication, audit: AuditLog) -> None:
        self._app = app
        self._authentication = authentication
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        changes = scope["method"] not in READING
        kept = 0 if not changes or scope["path"].startswith(WITHOUT_BODY) else DETAIL_CHARS_MAX

        async def receive_noted() -> Message:
            message = await receive()
            if kept:
                body.extend(message.get("body", b"")[: max(0, kept - len(body))])
            return message

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, message["status"], changes, body)
            await send(message)

        await self._app(scope, receive_noted, send_noted)

    def _note(self, scope: Scope, status: int, changes: bool, body: bytearray) -> None:
        if status < 400:
            if not changes or scope["path"].startswith(NO_CHANGES) or scope["path"].endswith(HINT):
                return
        elif not changes and status not in REFUSING:
            return
        connection = HTTPConnection(scope)
        header = connection.headers.get("authorization")
        user = self._authentication.user_of(header)
        action = f"{scope['method']} {scope['path']}"
        if user is not None and status < 400:
            self._audit.note(user.name, action, body.decode(errors="replace"), status)
            return
        kind = f"{scope['method']} {'/'.join(scope['path'].split('/')[:KIND_PARTS])}"
        if user is not None:
            self._audit.refused(user.name, action, status, body.decode(errors="replace"), kind)
        else:
            denial = self._authentication.denial(header)
            self._audit.stranger(connection.client, action, status, kind, denial)
