"""What a pool answers before it leads: that it stands by, and for whom."""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

RETRY_AFTER_S = 1
ADVICE = "Give your client the addresses of all pools on that database: DJINN_POOL=URL,URL."


class Front:
    """The pool's ASGI application; what it serves once it leads is ``app``. ``leader``: who leads meanwhile,
    None when nobody is known to."""

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
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return JSONResponse({"detail": f"{why}. {ADVICE}"}, status_code=503, headers=headers)
