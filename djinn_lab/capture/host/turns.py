"""One cell at a time in a process, and one thread at a time in a recorder.

Torch's global hooks, its default generator and its answers about CUDA, which capture replaces while a cell
runs, belong to the process and not to a thread: two cells at once would take each other's modules and random
numbers. Lazy tensors may be used by any thread; each op, with its way to the pool and back, is one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from djinn_lab.capture.host.interrupts import Stopped, acquire, locked, whole
from djinn_lab.errors import UserError
from djinn_lab.units import format_seconds

TURN_S = 60.0
"""So long a thread waits for the cell of another one."""
Method = TypeVar("Method", bound=Callable[..., Any])
_turn = threading.RLock()
_running: list[tuple[str, str]] = []
"""Thread and cell of whose turn it is, outermost first."""


@contextmanager
def only_cell(cell: str) -> Iterator[None]:
    """Wait until no other thread captures, and keep the others waiting; cells of one thread may be nested.
    Raises UserError after :data:`TURN_S`: the other cell may be waiting for this very thread."""
    thread = threading.current_thread().name
    if not acquire(_turn, TURN_S):
        other, running = next(iter(_running), ("another", "its cell"))
        raise UserError(
            f"thread {thread} waited {format_seconds(TURN_S)} to capture {cell!r} while thread {other} "
            f"captures {running!r}: in a process one cell is captured at a time.",
            "Let no cell wait for a thread that captures cells itself. For cells that take long, use a "
            "process for each.",
        )
    _running.append((thread, cell))
    try:
        yield
    finally:
        _running.pop()
        _turn.release()


def one_thread(method: Method) -> Method:
    """Let threads that call such methods of one object, which has a ``lock``, wait for each other. The method
    holds while it runs (:mod:`djinn_lab.capture.host.interrupts`)."""

    @wraps(method)
    def alone(self: Any, *args: Any, **options: Any) -> Any:
        with locked(self.lock):
            try:
                return method(self, *args, **options)
            except Stopped as stopped:
                raise stopped.error from None

    return cast(Method, whole(alone))
