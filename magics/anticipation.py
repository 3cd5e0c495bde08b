"""What announces a cell before it comes: its owner types, or executes something.

The pool receives ``SOON`` and begins to restore what it parked. That happens from a thread of its own, so
that no cell ever waits for it; it never opens a connection and never starts a pool.
"""

from __future__ import annotations

import logging
import queue
import threading
import time

from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.errors import DjinnError

EVERY_S = 3.0
"""Not more often than this: a signal counts for longer."""
log = logging.getLogger(__name__)


class Anticipation:
    """One per notebook. Its thread begins with the first announcement and lasts as long as the process."""

    def __init__(self) -> None:
        self._sent_s = float("-inf")
        self._waiting: queue.SimpleQueue[tuple[PoolClient, str]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def soon(self, session: Session) -> bool:
        """Announce that the session will compute in a moment; returns at once. False when nothing is sent: it
        was announced just now, or there is no connection."""
        now_s = time.monotonic()
        if now_s - self._sent_s < EVERY_S or not session.connected:
            return False
        self._sent_s = now_s
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="djinn-anticipation", daemon=True)
            self._thread.start()
        self._waiting.put((session.pool, session.welcome.session))
        return True

    def computed(self) -> None:
        """A cell just ran: the next one soon after it needs no announcement."""
        self._sent_s = time.monotonic()

    def _send(self) -> None:
        while True:
            pool, session = self._waiting.get()
            try:
                pool.signal_phase(session, "SOON")
            except DjinnError as error:
                log.info("the signal SOON did not reach the pool: %s", error)
