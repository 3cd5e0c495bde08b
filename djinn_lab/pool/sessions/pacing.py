"""Rate limits: a session or a reader above its rate waits, and no other one does."""

from __future__ import annotations

import asyncio

from djinn_lab.protocol.messages import SignalPhase, SubmitSegment

SIGNALS_PER_S = 200.0
"""That are read. An agent sends a few a second."""
SIGNALS_HEARD_PER_S = 20.0
"""That are events, with a line of the journal each. Of those that come faster only the last one is."""
SUBMISSIONS_PER_S = 1000.0
"""Above what a cell after the other, of one op each, can reach."""
BURST_S = 1.0
"""What was not used for this long may be used at once."""
READ_SHARE = 0.2
"""Of the time, that the answers to one user's reads may take."""
READ_BURST_S = 0.5
"""So long they may take at once, after a pause."""
READ_COST_S_MAX = 0.1
"""No page takes longer than that of the pool's own time."""


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
    """Signals and submissions of one session, each for itself; nothing else has a limit. ``heard``: signals
    that are events."""

    def __init__(self) -> None:
        self.signals = Pace(SIGNALS_PER_S)
        self.heard = Pace(SIGNALS_HEARD_PER_S)
        self.submissions = Pace(SUBMISSIONS_PER_S)

    def hear(self, now_s: float) -> None:
        """A signal is an event now; before its time, which costs it nothing, where a cell comes after it."""
        if self.heard.wait_s(now_s) <= 0:
            self.heard.take(now_s)

    def take(self, message: object, now_s: float) -> float:
        """Seconds to wait before the message is looked at."""
        match message:
            case SignalPhase():
                return self.signals.take(now_s)
            case SubmitSegment():
                return self.submissions.take(now_s)
            case _:
                return 0.0


class ReadPace:
    """Reads of one user, who waits after what took long: a program that asks in a loop leaves the pool most
    of its time for cells."""

    def __init__(self) -> None:
        self._left_s = READ_BURST_S
        self._at_s: float | None = None

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next read may begin."""
        earned_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s) * READ_SHARE
        self._left_s, self._at_s = min(READ_BURST_S, self._left_s + earned_s), now_s
        return max(0.0, -self._left_s / READ_SHARE)

    def took(self, seconds: float) -> None:
        """A read was answered. One that waited for something itself counts no more than a long one."""
        self._left_s -= min(seconds, READ_COST_S_MAX)


class SubmissionGate:
    """Lets one through in every round of the event loop, in the order in which they came: a thousand sessions
    that submit at once do not keep the loop from what else is to be done."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait_for_turn(self) -> None:
        async with self._lock:
            await asyncio.sleep(0)
