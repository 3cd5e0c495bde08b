"""Signals of a session that come faster than they can matter: only the latest is an event.

An agent's loop may signal around every small step. Each event costs the pool as much as a cell's, and a line
of its journal, but only the last of several phases within a few milliseconds changes what the pool does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from djinn_lab import memory
from djinn_lab.pool.sessions.registry import Session
from djinn_lab.protocol.messages import PhaseAnswered, SignalPhase

Tell = Callable[[PhaseAnswered], None]

SUPERSEDED = PhaseAnswered("superseded", "the session signalled again at once, and only the last one counts")
CLOSED = PhaseAnswered("rejected", "the session was closed")


@dataclass(slots=True)
class _Waiting:
    signal: SignalPhase
    tell: Tell
    timer: asyncio.TimerHandle


class Signals:
    """Throttle the signals of all sessions. ``hear`` feeds the engine, and returns its answer."""

    def __init__(
        self, now_s: Callable[[], float], hear: Callable[[Session, SignalPhase], memory.AnswerPhase]
    ) -> None:
        self._now_s = now_s
        self._hear = hear
        self._waiting: dict[str, _Waiting] = {}

    def put(self, session: Session, signal: SignalPhase, tell: Tell) -> None:
        """``tell`` is called once, with the answer: in the order in which the signals came."""
        before = self._waiting.get(session.session)
        if before is not None:
            before.tell(SUPERSEDED)
            before.signal, before.tell = signal, tell
            return
        wait_s = session.pace.heard.wait_s(self._now_s())
        if wait_s <= 0:
            self._handle(session, signal, tell)
            return
        timer = asyncio.get_running_loop().call_later(wait_s, self.settle, session)
        self._waiting[session.session] = _Waiting(signal, tell, timer)

    def settle(self, session: Session) -> None:
        """Handle a session's last signal now, before its next message."""
        waiting = self._waiting.pop(session.session, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._handle(session, waiting.signal, waiting.tell)

    def close(self, session: Session) -> None:
        """Forget a session's last signal, as the session ends."""
        waiting = self._waiting.pop(session.session, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.tell(CLOSED)

    def _handle(self, session: Session, signal: SignalPhase, tell: Tell) -> None:
        session.pace.hear(self._now_s())
        answer = self._hear(session, signal)
        tell(PhaseAnswered(answer.answer, answer.message))
