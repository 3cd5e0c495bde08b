"""Making a program that shows a difference as short as it goes."""

from __future__ import annotations

from collections.abc import Callable

from sweeps.fuzz.steps import Program


def shrink(program: Program, still_shows: Callable[[Program], bool]) -> Program:
    """Leave out steps, the last first, as long as ``still_shows`` says so."""
    changed = True
    while changed:
        changed = False
        for step in reversed(list(program.steps)):
            shorter = program.without(step.slot)
            if still_shows(shorter):
                program, changed = shorter, True
    return program
