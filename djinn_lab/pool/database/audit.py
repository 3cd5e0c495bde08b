"""The audit: every request that may change something, its user, and what was answered.

It is committed before the answer leaves, as is all that an answer states.
"""

from __future__ import annotations

import time

import msgspec
import sqlalchemy as sa
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from djinn_lab.pool.authentication import Authentication
from djinn_lab.pool.database.batch import Row, WriteKind
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.database.tables import audit

READING = frozenset(("GET", "HEAD", "OPTIONS"))
NO_CHANGES = ("/v1/blobs/",)
HINT = "/phase"
WITHOUT_BODY = "/v1/notebooks"
"""Whose bodies are whole notebooks, which the database keeps anyway."""
BODY_BYTES_MAX = 2000


class AuditRow(msgspec.Struct, frozen=True):
    """``at``: seconds since the epoch. ``status``: of the HTTP answer, so below 400 if it was done. ``body``:
    the beginning of what was sent."""

    at: float
    pool: str
    user: str
    action: str
    status: int
    body: str


class Audited:
    """ASGI middleware. Requests without a valid token change nothing, and are left out."""

    def __init__(self, app: ASGIApp, authentication: Authentication, store: Store, pool: str) -> None:
        self._app = app
        self._authentication = authentication
        self._store = store
        self._pool = pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = Headers(scope=scope).get("authorization") if _changes(scope) else None
        user = self._authentication.user_of(token)
        if user is None:
            await self._app(scope, receive, send)
            return
        body = bytearray()
        kept = 0 if scope["path"].startswith(WITHOUT_BODY) else BODY_BYTES_MAX

        async def receive_noted() -> Message:
            message = await receive()
            body.extend(message.get("body", b"")[: max(0, kept - len(body))])
            return message

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                row = AuditRow(
                    at=time.time(),
                    pool=self._pool,
                    user=user.name,
                    action=f"{scope['method']} {scope['path']}",
                    status=message["status"],
                    body=body.decode(errors="replace").replace("\0", "\ufffd"),
                )
                self._store.put(Row(WriteKind.AUDIT, msgspec.structs.asdict(row)))
            await send(message)

        await self._app(scope, receive_noted, send_noted)


def read_audit(connection: sa.Connection, limit: int) -> list[AuditRow]:
    """Read the newest rows first."""
    rows = connection.execute(sa.select(audit).order_by(audit.c.id.desc()).limit(limit))
    return [AuditRow(row.at, row.pool, row.user, row.action, row.status, row.body) for row in rows]


def _changes(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] in READING:
        return False
    path: str = scope["path"]
    return not (path.startswith(NO_CHANGES) or path.endswith(HINT))
