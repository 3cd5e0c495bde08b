"""Rate limits: a session or a reader above its rate waits, and no other one does."""

from __future__ import annotations

import asyncio

from djinn_lab.protocol.messages import SignalPhase, SubmitSegment

SIGNALS_PER_S = 200.0
"""That are read. An agent sends a few a second."""
SIGNALS_HANDLED_PER_S = 20.0
"""That are events, with a line of the journal each. Of those that come faster only the last one is."""
SUBMISSIONS_PER_S = 1000.0
"""Above what a cell after the other, of one op each, can reach."""
BURST_S = 1.0
"""What was not used for this long may be used at once."""


class Pace:
    """A token bucket (Turner, "New directions in communications", 1986) that goes into debt: taking a token
    that is not there yet returns how long to wait for it."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._tokens = per_s * BURST_S
        self._at_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until another token is there; 0 at rates within the limit."""
        earned = max(0.0, now_s - self._at_s) * self._per_s
        self._tokens = min(self._per_s * BURST_S, self._tokens + earned)
        self._at_s = max(self._at_s, now_s)
        return max(0.0, (1.0 - self._tokens) / self._per_s)

    def take(self, now_s: float) -> float:
        """Take a token, and return how long to wait for it."""
        wait_s = self.wait_s(now_s)
        self._tokens -= 1.0
        return wait_s


class SessionPace:
    """Limit one session's signals and submissions, each for itself; nothing else has a limit. ``handled``:
    signals that become events."""

    def __init__(self) -> None:
        self.signals = Pace(SIGNALS_PER_S)
        self.handled = Pace(SIGNALS_HANDLED_PER_S)
        self.submissions = Pace(SUBMISSIONS_PER_S)

    def charge(self, now_s: float) -> None:
        """Charge a signal that becomes an event. One that a cell hurried costs nothing."""
        if self.handled.wait_s(now_s) <= 0:
            self.handled.take(now_s)

    def take(self, message: object, now_s: float) -> float:
        """Charge a message, and return the seconds to wait before it is handled."""
        match message:
            case SignalPhase():
                return self.signals.take(now_s)
            case SubmitSegment():
                return self.submissions.take(now_s)
            case _:
                return 0.0


class SubmissionGate:
    """Let one submission through in every round of the event loop, in order. So a thousand sessions that
    submit at once do not keep the loop from its other work."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait_for_turn(self) -> None:
        async with self._lock:
            await asyncio.sleep(0)
