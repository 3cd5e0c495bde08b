"""Back-pressure on users of the REST API, above all on readers."""

from __future__ import annotations

import asyncio
import math

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from djinn_lab.pool.authentication import Authentication, User
from djinn_lab.pool.user_limits import RequestRates
from djinn_lab.units import format_seconds

WAIT_S_MAX = 10.0
"""A read that would have to wait for longer is answered with 429."""
UNPACED = ("/v1/alive", "/v1/blobs", "/v1/results", "/v1/link")
"""Cheap, or parts of a cell."""
READ_SHARE = 0.2
"""Of the time, that the answers to one user's reads may take."""
READ_BURST_S = 0.5
"""So long they may take at once, after a pause."""
READ_COST_S_MAX = 0.1
"""No page takes longer than that of the pool's own time."""


class ReadPace:
    """Limit one user's reads: after a long one the next waits, so that a program that asks in a loop leaves
    the pool most of its time for cells."""

    def __init__(self) -> None:
        self._left_s = READ_BURST_S
        self._at_s: float | None = None

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next read may begin."""
        earned_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s) * READ_SHARE
        self._left_s, self._at_s = min(READ_BURST_S, self._left_s + earned_s), now_s
        return max(0.0, -self._left_s / READ_SHARE)

    def took(self, seconds: float) -> None:
        """Charge a read that was answered, at most READ_COST_S_MAX."""
        self._left_s -= min(seconds, READ_COST_S_MAX)


class ReadLimiter:
    """ASGI middleware: a user whose reads took long, or whose requests are too many, waits before the next
    request is looked at."""

    def __init__(self, app: ASGIApp, authentication: Authentication, rates: RequestRates) -> None:
        self._rates = rates
        self._app = app
        self._authentication = authentication
        self._paces: dict[str, ReadPace] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        user = self._authentication.user_of(Headers(scope=scope).get("authorization"))
        if user is None:
            await self._app(scope, receive, send)  # which answers 401
            return
        loop = asyncio.get_running_loop()
        wait_s = self._rates.wait_s(user.name, loop.time())
        if wait_s > WAIT_S_MAX:
            await _refuse(f"{user.name} asks too often", wait_s)(scope, receive, send)
            return
        self._rates.take(user.name, loop.time())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        if scope["method"] == "GET" and not scope["path"].startswith(UNPACED):
            await self._read(user, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _read(self, user: User, scope: Scope, receive: Receive, send: Send) -> None:
        pace, loop = self._paces.setdefault(user.name, ReadPace()), asyncio.get_running_loop()
        wait_s = pace.wait_s(loop.time())
        if wait_s > WAIT_S_MAX:
            await _refuse(f"{user.name} reads too often", wait_s)(scope, receive, send)
            return
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        began_s = loop.time()
        try:
            await self._app(scope, receive, send)
        finally:
            pace.took(loop.time() - began_s)


def _refuse(why: str, wait_s: float) -> JSONResponse:
    headers = {"Retry-After": str(math.ceil(wait_s))}
    return JSONResponse({"detail": f"{why}. Ask again in {format_seconds(wait_s)}."}, 429, headers)
