"""What a request may take before it is answered: bytes of its body, and seconds for its headers and
between two parts of its body."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from djinn_lab.units import format_bytes

BODY_BYTES_MAX = 2**20
HEADERS_S = 10.0
BODY_PAUSE_S = 30.0
COUNTED_BY_THEMSELVES = ("/v1/blobs", "/v1/link", "/v1/notebooks")
TOO_LARGE = f"The body of this request has more than {format_bytes(BODY_BYTES_MAX)}. Send less at once."


class BodyLimiter:
    """ASGI middleware: a request with too large a body is answered with 413, one whose body stops coming for
    ``pause_s`` seconds with 408, and the rest is not read."""

    def __init__(self, app: ASGIApp, pause_s: float = BODY_PAUSE_S) -> None:
        self._app = app
        self._pause_s = pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bytes_max = None if scope["path"].startswith(COUNTED_BY_THEMSELVES) else BODY_BYTES_MAX
        received, whole = 0, False

        async def receive_limited() -> Message:
            nonlocal received, whole
            if whole:  # what comes next is the client's leaving, whenever that is
                return await receive()
            try:
                async with asyncio.timeout(self._pause_s):
                    message = await receive()
            except TimeoutError:
                stopped = (
                    f"The body of this request stopped coming {self._pause_s:g} seconds ago. Send it again."
                )
                raise HTTPException(408, stopped, {"Connection": "close"}) from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if bytes_max is not None and received > bytes_max:
                raise HTTPException(413, TOO_LARGE)
            return message

        announced = Headers(scope=scope).get("content-length", "0")
        if bytes_max is not None and announced.isdecimal() and int(announced) > bytes_max:
            await JSONResponse({"detail": TOO_LARGE}, 413, {"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, receive_limited, send)


class PunctualProtocol(H11Protocol):
    """Close a connection whose next request has not arrived, up to the end of its headers, within
    HEADERS_S of its first byte or, for the first one, of the connection."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        if not self._under_way():
            self._expect()
        super().data_received(data)
        if self._under_way() or self.transport.get_protocol() is not self:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _under_way(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
