"""Waiting for a socket."""

from __future__ import annotations

import selectors
import socket
import sys

if sys.platform == "win32":
    _Selector = selectors.SelectSelector
else:
    _Selector = selectors.PollSelector  # unlike select, it takes handles above 1023


def wait_readable(waited: socket.socket, timeout_s: float | None) -> bool:
    """Wait until the socket has data or is closed, and return whether it has or is."""
    return _wait(waited, selectors.EVENT_READ, timeout_s)


def wait_writable(waited: socket.socket, timeout_s: float | None) -> bool:
    """Wait until the socket takes data or is closed, and return whether it does or is."""
    return _wait(waited, selectors.EVENT_WRITE, timeout_s)


def _wait(waited: socket.socket, event: int, timeout_s: float | None) -> bool:
    with _Selector() as selector:
        selector.register(waited, event)
        return bool(selector.select(None if timeout_s is None else max(0.0, timeout_s)))
