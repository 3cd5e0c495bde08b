"""Ctrl-C at safe moments.

A KeyboardInterrupt that is raised between taking an answer of the pool and noting what it says loses the
answer, and the pool sends it once.

:mod:`signal` wraps the functions of ``_signal`` and looks each handler up in an enumeration, which would take
longer than all else here.
"""

from __future__ import annotations

import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_arrived: deque[tuple[int, FrameType | None]] = deque()
_handler: Callable[[int, FrameType | None], Any] = signal.default_int_handler
"""The process's own, which holding replaces."""
_NUMBER = int(signal.SIGINT)


def _note(number: int, frame: FrameType | None) -> None:
    _arrived.append((number, frame))


def _in_main_thread() -> bool:
    """Return whether this thread may set handlers, and takes interrupts."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def held() -> Iterator[None]:
    """Delay interrupts inside until :func:`deliver` is called, at the latest until the end."""
    global _handler
    before = getsignal(_NUMBER)
    if not _in_main_thread() or not callable(before) or before is _note:
        yield
        return
    _handler = before
    set_signal(_NUMBER, _note)
    try:
        yield
    finally:
        set_signal(_NUMBER, before)
        deliver()


@contextmanager
def delivered() -> Iterator[None]:
    """Let interrupts inside take effect at once, although they are held around it."""
    deliver()
    if not _in_main_thread() or getsignal(_NUMBER) is not _note:
        yield
        return
    set_signal(_NUMBER, _handler)
    try:
        yield
    finally:
        set_signal(_NUMBER, _note)


def deliver() -> None:
    """Call the process's own handler for the interrupts that arrived: it raises KeyboardInterrupt, mostly."""
    if _in_main_thread():
        while _arrived:
            _handler(*_arrived.popleft())
