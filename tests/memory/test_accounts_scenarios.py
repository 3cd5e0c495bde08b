"""The accounts against their scenario files; see :mod:`scenario_kit`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from scenario_kit import parse_event, render, run_scenario

from djinn_lab.memory import Event, IllegalEvent, MemoryReported
from djinn_lab.memory.machine.accounts import MemoryAccounts

KINDS = {kind.__name__: kind for kind in get_args(Event)}
SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Player:
    def __init__(self) -> None:
        self.accounts = MemoryAccounts()

    def answer(self, line: str, at_s: float) -> Iterator[str]:
        if line == "show":
            yield from self.show()
        else:
            yield from self.handle(line, at_s)
        self.accounts.validate()

    def handle(self, line: str, at_s: float) -> Iterator[str]:
        before = self.accounts.snapshot()
        event = (
            read_report(line, at_s) if line.startswith("MemoryReported") else parse_event(line, at_s, KINDS)
        )
        try:
            commands = self.accounts.handle(event)  # type: ignore[arg-type]
        except IllegalEvent as error:
            assert self.accounts.snapshot() == before
            yield f"  illegal: {error}"
        else:
            yield from (f"  {render(command)}" for command in commands)

    def show(self) -> Iterator[str]:
        snapshot = self.accounts.snapshot()
        for device in snapshot.devices:
            held = " ".join(f"{session}:{nbytes}" for session, nbytes in sorted(device.session_bytes.items()))
            used = f"{device.used_bytes}/{device.memory_bytes} peak {device.peak_bytes}"
            yield f"  {device.device} {used} [{held}]"
        for session in snapshot.sessions:
            wake = "" if session.wake_at_s is None else f" until {session.wake_at_s:g}"
            where = session.device or "nowhere"
            tier = f", {session.total_bytes} bytes on {session.tier}" if session.total_bytes else ""
            moving = f" ({session.moving} under way)" if session.moving else ""
            yield f"  {session.session} {session.connection} {session.phase}{wake} on {where}{tier}{moving}"


def read_report(line: str, at_s: float) -> msgspec.Struct:
    """``MemoryReported device=D used=N peak=N [job=J] session:bytes...``: all of it with a host copy."""
    _, *words = shlex.split(line)
    named = dict(word.split("=") for word in words if "=" in word)
    held = dict(word.split(":") for word in words if "=" not in word)
    sessions = {session: int(nbytes) for session, nbytes in held.items()}
    used, peak = int(named["used"]), int(named["peak"])
    return MemoryReported(at_s, named["device"], used, peak, sessions, job=named.get("job"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    run_scenario(path, Player().answer)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 4
