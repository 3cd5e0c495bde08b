"""uvicorn, as a part of our process instead of its owner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from djinn_lab.protocol.messages import MESSAGE_BYTES_MAX

PING_TIMEOUT_S = 120.0
"""A client may hold its interpreter for long inside one torch op."""


class WebServer(uvicorn.Server):
    """Leaves signals to the pool."""

    def __init__(self, app: ASGIApp, grace_s: int) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws_max_size=MESSAGE_BYTES_MAX,
            ws_ping_timeout=PING_TIMEOUT_S,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=grace_s,
            server_header=False,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
