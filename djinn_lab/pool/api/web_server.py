"""The web server: uvicorn as a part of the pool's process, and what a pool answers before it leads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

from djinn_lab.pool.api.request_limits import PunctualProtocol
from djinn_lab.pool.certificates import ServerCertificate
from djinn_lab.protocol.messages import MESSAGE_BYTES_MAX

KEEP_ALIVE_S = 60
"""Longer than clients keep an unused connection (httpx: 5 s), or they would send on one that is being
closed."""
PING_TIMEOUT_S = 120.0
"""A client may hold its interpreter for long inside one torch op."""
CLOSE_WITHIN_S = 2.0
"""A client that does not answer the end of a WebSocket, such as one that never sent a Hello."""
STANDBY_RETRY_AFTER_S = 1
STANDBY_ADVICE = "Give your client the addresses of all pools on that database: DJINN_POOL=URL,URL."


class PromptWebSocket(AutoWebSocketsProtocol):  # type: ignore[misc,valid-type]
    """A WebSocket whose end waits for its client for a moment only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.close_timeout = CLOSE_WITHIN_S


class WebServer(uvicorn.Server):
    """Leaves signals to the pool."""

    def __init__(self, app: ASGIApp, grace_s: int, certificate: ServerCertificate | None = None) -> None:
        config = uvicorn.Config(
            app,
            http=PunctualProtocol,
            ws=PromptWebSocket,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws_max_size=MESSAGE_BYTES_MAX,
            ws_ping_timeout=PING_TIMEOUT_S,
            ws_per_message_deflate=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=grace_s,
            server_header=False,
            ssl_certfile=None if certificate is None else certificate.certificate,
            ssl_keyfile=None if certificate is None else certificate.key,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class StandbyApp:
    """Answer 503 until this pool leads, then serve ``app``. ``leader``: names the pool that
    leads meanwhile, None when it is unknown."""

    def __init__(self, leader: Callable[[], str | None]) -> None:
        self.app: ASGIApp | None = None
        self._leader = leader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(self._not_here())
        elif scope["path"] == "/v1/alive":
            await JSONResponse({"alive": True, "leads": False})(scope, receive, send)
        else:
            await self._not_here()(scope, receive, send)

    def _not_here(self) -> JSONResponse:
        leader = self._leader()
        why = f"This pool stands by: {leader} leads" if leader else "This pool is taking over"
        headers = {"Retry-After": str(STANDBY_RETRY_AFTER_S)}
        return JSONResponse({"detail": f"{why}. {STANDBY_ADVICE}"}, status_code=503, headers=headers)
