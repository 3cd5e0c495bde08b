"""What one user may have and ask for, so that others keep theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from djinn_lab.errors import Refused
from djinn_lab.pool.sessions.pacing import Pace
from djinn_lab.protocol.user_limits import CONNECTIONS_MAX, SESSIONS_MAX

REQUESTS_PER_S = 2000.0
"""Requests and WebSocket messages of all sessions together. A busy notebook sends some hundred."""
USERS_MAX = 10_000


class UserLimits(msgspec.Struct, frozen=True):
    """``sessions``, ``connections``: at once. ``upload_bytes``: stored and under way, None for all of the
    pool's while it has one user, and half of it when it has several."""

    sessions: int = SESSIONS_MAX
    connections: int = CONNECTIONS_MAX
    upload_bytes: int | None = None
    requests_per_s: float = REQUESTS_PER_S


class OverLimit(Refused):
    """A user has, or asks for, more than the limit. ``status``: of the HTTP answer."""

    def __init__(self, message: str, advice: str, status: int = 429) -> None:
        super().__init__(message, advice)
        self.status = status


class RequestRates:
    """Pace each user's requests and messages together, whatever they are."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._paces: dict[str, Pace] = {}

    def wait_s(self, user: str, now_s: float) -> float:
        """Return the seconds until the user's next request may be handled, without charging it."""
        return self._pace(user).wait_s(now_s)

    def take(self, user: str, now_s: float) -> float:
        """Charge a request, and return the seconds to wait before it is handled."""
        return self._pace(user).take(now_s)

    def _pace(self, user: str) -> Pace:
        pace = self._paces.get(user)
        if pace is None:
            if len(self._paces) >= USERS_MAX:
                self._paces.clear()  # their buckets are full again, at worst a second too early
            pace = self._paces[user] = Pace(self._per_s)
        return pace


class Connections:
    """Count each user's WebSockets."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    @contextmanager
    def one_of(self, user: str) -> Iterator[None]:
        """Hold one. Raises OverLimit when the user has too many."""
        if self._open[user] >= self._limit:
            raise OverLimit(
                f"{user} has {self._limit} connections, which is the limit.",
                "Close notebooks that you do not use.",
            )
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
