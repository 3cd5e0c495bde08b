"""The stop button reaches a cell also where Python would swallow it."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

AGAIN_AFTER_S = 0.005
"""Long enough for Python to have left what it reported from."""


@contextmanager
def stops_are_kept() -> Iterator[None]:
    """A KeyboardInterrupt that arrives while something is let go (in ``__del__``, or what
    :func:`weakref.finalize` calls) cannot leave from there: Python reports it and continues, and the cell
    would run to its end. Inside this it is raised again a moment later, at the latest at the end."""
    report = sys.unraisablehook
    swallowed: list[Timer] = []

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)
            return
        again = Timer(AGAIN_AFTER_S, _thread.interrupt_main)
        again.daemon = True
        swallowed.append(again)
        again.start()

    sys.unraisablehook = hook
    try:
        yield
        due = [timer for timer in swallowed if timer.is_alive()]
        if due:
            raise KeyboardInterrupt
    finally:
        for timer in swallowed:
            timer.cancel()
        if sys.unraisablehook is hook:
            sys.unraisablehook = report
