"""Where each session's state was over the last minutes, and what happened to it: kept by the hub, once for
all pages. The pool itself remembers only the last few hundred happenings."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import msgspec

from djinn_lab.memory.snapshot import MemoryChange
from djinn_lab.protocol.rest.sessions import MemoryView

KEPT_S = 900.0
COPIES = ("store", "evict", "restore", "demote", "forget")
"""What has a beginning and an end."""
HAPPENINGS_MAX = 20_000
SPANS_MAX = 2_000
"""For one session."""


class Span(NamedTuple):
    """A session was in ``state`` from ``start`` to ``end`` (None: it still is), in seconds of the pool's
    clock."""

    state: str
    start: float
    end: float | None


class MemoryHistory:
    """What happened to sessions. Fed with every answer of the pool. May be read by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[str, deque[Span]] = {}
        self._happenings: deque[MemoryChange] = deque(maxlen=HAPPENINGS_MAX)
        self._begun: dict[str, str] = {}
        self._last_s = float("-inf")
        self._at_last: set[MemoryChange] = set()
        self._pool = ""
        self.watched_since_s: float | None = None
        """When the running pool was first looked at, by its own clock."""
        self.version = 0
        """Grows when something was added that a page may not have drawn."""

    def note(self, pool: str, memory: MemoryView) -> None:
        """Add what is new. Another pool starts afresh."""
        with self._lock:
            if pool != self._pool:
                self._pool = pool
                self.watched_since_s = memory.now
                self._spans.clear()
                self._happenings.clear()
                self._begun.clear()
                self._last_s = float("-inf")
                self.version += 1
            changed = self._note_happenings(memory)
            changed |= self._note_states(memory)
            self.version += changed

    def _note_happenings(self, memory: MemoryView) -> bool:
        """They come in order of time, and each answer repeats the last ones."""
        fresh = [one for one in memory.happenings if one.at_s >= self._last_s and one not in self._at_last]
        for happening in fresh:
            if happening.at_s > self._last_s:
                self._last_s = happening.at_s
                self._at_last.clear()
            self._at_last.add(happening)
            self._take(happening)
        while self._happenings and self._happenings[0].at_s < memory.now - KEPT_S:
            self._happenings.popleft()
        return bool(fresh)

    def _take(self, happening: MemoryChange) -> None:
        """The pool reports the beginning of a copy with its reason, and its end with how long it took; kept
        is the end, with the reason."""
        begins = happening.seconds is None and happening.what in (*COPIES, "prefetch")
        if begins:
            self._begun[happening.session] = happening.reason
        elif happening.what in COPIES:
            reason = self._begun.pop(happening.session, happening.reason)
            happening = msgspec.structs.replace(happening, reason=reason)
        if not begins or happening.what == "prefetch":
            self._happenings.append(happening)

    def _note_states(self, memory: MemoryView) -> bool:
        changed = False
        present = {session.session: session.state for session in memory.sessions}
        for session, state in present.items():
            spans = self._spans.setdefault(session, deque(maxlen=SPANS_MAX))
            if spans and spans[-1].end is None and spans[-1].state == state:
                continue
            self._end(spans, memory.now)
            spans.append(Span(state, memory.now, None))
            changed = True
        for session in list(self._spans):
            spans = self._spans[session]
            if session not in present:
                changed |= self._end(spans, memory.now)
            while spans and spans[0].end is not None and spans[0].end < memory.now - KEPT_S:
                spans.popleft()
            if not spans:
                del self._spans[session]
        return changed

    def _end(self, spans: deque[Span], at_s: float) -> bool:
        if not spans or spans[-1].end is not None:
            return False
        spans[-1] = spans[-1]._replace(end=at_s)
        return True

    def spans(self, session: str, since_s: float) -> list[Span]:
        """Return the session's memory states since then, oldest first."""
        with self._lock:
            spans = self._spans.get(session, ())
            return [span for span in spans if span.end is None or span.end >= since_s]

    def happenings(self, since_s: float, session: str | None = None) -> list[MemoryChange]:
        """Return the changes since then (of one session), oldest first."""
        with self._lock:
            return [
                one
                for one in self._happenings
                if one.at_s >= since_s and (session is None or one.session == session)
            ]

    def reason(self, session: str) -> str:
        """Why the copy under way of this session's state was begun."""
        with self._lock:
            return self._begun.get(session, "")
