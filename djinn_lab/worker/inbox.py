"""What the pool sent for the thread that runs programs."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from djinn_lab.protocol import worker as messages
from djinn_lab.worker.outcome import StopSignal


@dataclass(eq=False, slots=True)
class Given:
    """A segment from its arrival to its answer. ``stop``: as the pool asked."""

    message: messages.RunSegment
    stop: StopSignal = field(default_factory=StopSignal)


@dataclass(frozen=True)
class GivenBatch:
    """Segments that run in lockstep, from their arrival to the last answer."""

    structure: bytes
    segments: tuple[Given, ...]


Item = messages.ToWorker | Given | GivenBatch | None
"""None: the connection is closed."""


class Inbox:
    """Messages in the order of their arrival. Put by one thread, taken by another one. ``interleaved``: how
    many segments wait that may run between two ops of another one."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self.interleaved = 0

    def put(self, item: Item) -> None:
        with self._changed:
            self._items.append(item)
            self.interleaved += _is_interleaved(item)
            self._changed.notify()

    @property
    def empty(self) -> bool:
        return not self._items

    def get(self, timeout_s: float | None = None) -> Item:
        """Wait for the next message. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._items, timeout_s):
                raise TimeoutError
            item = self._items.popleft()
            self.interleaved -= _is_interleaved(item)
            return item

    def take_interleaved(self) -> list[Given | messages.Release]:
        """Take the segments that may run between two ops, and what their sessions release before. A session
        for which anything else waits keeps its order: its segments stay."""
        with self._changed:
            if not self.interleaved:
                return []
            named = set().union(*(_sessions_of(item) for item in self._items if _is_interleaved(item)))
            taken, left, blocked = list[Given | messages.Release](), deque[Item](), set[str]()
            for item in self._items:
                sessions = _sessions_of(item)
                if (
                    isinstance(item, Given | messages.Release)
                    and (isinstance(item, messages.Release) or _is_interleaved(item))
                    and sessions <= named - blocked
                ):
                    taken.append(item)
                else:
                    blocked.update(sessions)
                    left.append(item)
            self._items = left
            self.interleaved = sum(map(_is_interleaved, left))
            return taken


def _is_interleaved(item: Item) -> bool:
    return isinstance(item, Given) and item.message.interleaved


def _sessions_of(item: Item) -> set[str]:
    if isinstance(item, Given):
        return {item.message.session}
    if isinstance(item, GivenBatch):
        return {given.message.session for given in item.segments}
    return {item.session} if isinstance(item, messages.Release | messages.Close) else set()
