"""Signals of a session that come faster than they can matter: only the latest becomes an event.

An agent's loop may signal around every small step. Each event costs the pool as much as a cell's, and a line
of its journal, but only the last of several phases within a few milliseconds changes what the pool does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from djinn_lab import memory
from djinn_lab.pool.sessions.registry import ClientSession
from djinn_lab.protocol.messages import PhaseAnswered, SignalPhase

Reply = Callable[[PhaseAnswered], None]

SUPERSEDED = PhaseAnswered("superseded", "the session signalled again at once, and only the last one counts")
NOT_FINITE = PhaseAnswered("rejected", "expected_s is no number of seconds; it must be 0 or more")
CLOSED = PhaseAnswered("rejected", "the session was closed")


@dataclass(slots=True)
class _Waiting:
    signal: SignalPhase
    reply: Reply
    timer: asyncio.TimerHandle


class SignalThrottle:
    """Throttle the signals of all sessions. ``handle``: handles a signal with the engine, and returns its
    answer."""

    def __init__(
        self, now_s: Callable[[], float], handle: Callable[[ClientSession, SignalPhase], memory.AnswerPhase]
    ) -> None:
        self._now_s = now_s
        self._answer = handle
        self._waiting: dict[str, _Waiting] = {}

    def put(self, session: ClientSession, signal: SignalPhase, reply: Reply) -> None:
        """``reply`` is called once, with the answer: in the order in which the signals came."""
        if signal.expected_s is not None and not math.isfinite(signal.expected_s):
            reply(NOT_FINITE)  # nor could the journal keep it
            return
        before = self._waiting.get(session.session)
        if before is not None:
            before.reply(SUPERSEDED)
            before.signal, before.reply = signal, reply
            return
        wait_s = session.pace.handled.wait_s(self._now_s())
        if wait_s <= 0:
            self._handle(session, signal, reply)
            return
        timer = asyncio.get_running_loop().call_later(wait_s, self.settle, session)
        self._waiting[session.session] = _Waiting(signal, reply, timer)

    def settle(self, session: ClientSession) -> None:
        """Handle a session's last signal now, before its next message."""
        waiting = self._waiting.pop(session.session, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._handle(session, waiting.signal, waiting.reply)

    def close(self, session: ClientSession) -> None:
        """Forget a session's last signal, as the session ends."""
        waiting = self._waiting.pop(session.session, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.reply(CLOSED)

    def _handle(self, session: ClientSession, signal: SignalPhase, reply: Reply) -> None:
        session.pace.charge(self._now_s())
        answer = self._answer(session, signal)
        reply(PhaseAnswered(answer.answer, answer.message))
