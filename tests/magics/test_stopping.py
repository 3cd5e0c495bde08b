"""The stop button where Python would swallow it."""

from __future__ import annotations

import sys
import time
import weakref
from threading import Timer

import pytest

from djinn_lab.magics.notebook_cell import stops_are_kept


class Loud:
    """Stopped while it is let go."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


def stopped() -> None:
    raise KeyboardInterrupt


def run_long() -> None:
    """Loop for a minute in Python lines, so that an interrupt is raised between two of them."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        pass


def test_interrupt_swallowed_by_a_destructor_is_raised_again() -> None:
    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), stops_are_kept():
        del [Loud()][0]
        run_long()
    assert sys.unraisablehook is before


def test_interrupt_swallowed_by_a_finalizer_is_raised_again() -> None:
    class Plain:
        pass

    with pytest.raises(KeyboardInterrupt), stops_are_kept():
        held = Plain()
        weakref.finalize(held, stopped)
        del held
        run_long()


def test_interrupt_that_is_raised_again_too_early_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is still being reported, as on a machine whose cores are busy."""
    start, times = Timer.start, iter([None])

    def start_slowly(timer: Timer) -> None:
        start(timer)
        if next(times, "again") is None:
            run_long()

    monkeypatch.setattr(Timer, "start", start_slowly)
    with pytest.raises(KeyboardInterrupt), stops_are_kept():
        del [Loud()][0]
        run_long()


def test_interrupt_swallowed_by_the_last_line_is_raised_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), stops_are_kept():
        del [Loud()][0]


def test_what_else_cannot_be_raised_is_reported_as_ever() -> None:
    reported = []

    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    before, sys.unraisablehook = sys.unraisablehook, reported.append
    try:
        with stops_are_kept():
            del [Broken()][0]
    finally:
        sys.unraisablehook = before
    assert [one.exc_type for one in reported] == [ValueError]
