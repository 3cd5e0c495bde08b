"""The queue against its scenario files; see :mod:`scenario_kit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from scenario_kit import parse_event, render, run_scenario

from djinn_lab.jobs import Event, IllegalEvent
from djinn_lab.jobs.machine.queue import JobQueue

KINDS = {kind.__name__: kind for kind in get_args(Event)}
SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Player:
    def __init__(self) -> None:
        self.queue = JobQueue()

    def answer(self, line: str, at_s: float) -> Iterator[str]:
        verb, _, rest = line.partition(" ")
        if verb == "show":
            yield from self.show()
        elif verb == "why":
            yield f"  {self.queue.explain(rest)}"
        else:
            yield from self.handle(line, at_s)
        self.queue.validate()

    def handle(self, line: str, at_s: float) -> Iterator[str]:
        before = self.queue.snapshot()
        event = parse_event(line, at_s, KINDS)
        try:
            commands = self.queue.handle(event)  # type: ignore[arg-type]
        except IllegalEvent as error:
            assert self.queue.snapshot() == before
            yield f"  illegal ({error.fault}): {error}"
        else:
            yield from (f"  {render(command)}" for command in commands)

    def show(self) -> Iterator[str]:
        snapshot = self.queue.snapshot()
        for view in snapshot.devices:
            state = f"runs {view.running or 'nothing'}" if view.alive else "is down"
            pending, sessions = " ".join(view.queue), " ".join(view.sessions)
            yield f"  {view.device} {state}, queue [{pending}], sessions [{sessions}]"
        for job in snapshot.jobs:
            yield f"  {job.job} {job.state} segment {job.segment} {job.ops_done}/{job.ops_total}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    run_scenario(path, Player().answer)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 6
