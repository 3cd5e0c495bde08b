"""Rate limits of one session: a session above its rate waits, and no other one does."""

from __future__ import annotations

from djinn_lab.protocol.messages import SignalPhase, SubmitSegment

SIGNALS_PER_S = 200.0
"""An agent sends a few a second. Each costs the pool some of its time, and a line of its journal."""
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
        """Seconds until another one may be done; 0 as long as it is asked for seldom enough."""
        earned = max(0.0, now_s - self._at_s) * self._per_s
        self._tokens = min(self._per_s * BURST_S, self._tokens + earned)
        self._at_s = max(self._at_s, now_s)
        return max(0.0, (1.0 - self._tokens) / self._per_s)

    def take(self, now_s: float) -> float:
        """The same, and that one is on its way."""
        wait_s = self.wait_s(now_s)
        self._tokens -= 1.0
        return wait_s


class SessionPace:
    """Signals and submissions of one session, each for itself; nothing else has a limit."""

    def __init__(self) -> None:
        self.signals = Pace(SIGNALS_PER_S)
        self.submissions = Pace(SUBMISSIONS_PER_S)

    def take(self, message: object, now_s: float) -> float:
        """Seconds to wait before the message is looked at."""
        match message:
            case SignalPhase():
                return self.signals.take(now_s)
            case SubmitSegment():
                return self.submissions.take(now_s)
            case _:
                return 0.0
