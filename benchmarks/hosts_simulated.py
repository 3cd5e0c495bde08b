"""What one server's decisions cost with the devices of a thousand hosts: the engine of the pool, queue and
session memory, in simulated time. Processes and network are not in the figures."""

from __future__ import annotations

from random import Random
from time import thread_time
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, figure
from djinn_lab import engine, jobs
from djinn_lab.simulator.pool import SimulatedPool

NAME = "hosts-simulated"
DEVICES_PER_HOST, SESSIONS_PER_HOST = 8, 5
HOSTS, FEW_HOSTS, QUICK_HOSTS = 1_000, 10, 20
CELL_S, PAUSE_S = (10.0, 680.0), (10.0, 164.0)
"""Uniform between both: a session submits 200 cells a day."""
STATE_MIB, DEVICE_MIB = 4_000, 80_000
WARM_S = CELL_S[1] + PAUSE_S[1]
"""By then every session has begun."""
BLOCK_S, BLOCKS = 10.0, 60
PROJECTS = 50
US = 1e6
DAY_S = 86_400
FEW = f"{FEW_HOSTS} hosts"


class Team(SimulatedPool):
    """Sessions that run one cell after another, with pauses. ``cells``: that ended. ``events_s``,
    ``ticks_s``: of the engine, for each event of users and devices, and for each tick of the clock, in time
    of the processor."""

    def __init__(self, hosts: int) -> None:
        self.cells = 0
        self.events_s: list[float] = []
        self.ticks_s: list[float] = []
        self._random = Random(hosts)
        super().__init__(hosts * DEVICES_PER_HOST, DEVICE_MIB, devices_per_host=DEVICES_PER_HOST)
        self._turns = dict.fromkeys((f"s{number}" for number in range(hosts * SESSIONS_PER_HOST)), 0)
        for session in self._turns:
            self.open(session)
            self._next_turn(session, self._random.uniform(0.0, CELL_S[1] + PAUSE_S[1]))

    @property
    def session_count(self) -> int:
        return len(self._turns)

    def run_for(self, seconds: float) -> None:
        self.run(self.now_s + seconds)

    def handle(self, event: engine.Event) -> list[engine.Command]:
        started = thread_time()
        commands = super().handle(event)
        taken = self.ticks_s if isinstance(event, engine.ClockTicked) else self.events_s
        taken.append(thread_time() - started)
        return commands

    def perform(self, command: engine.Command) -> None:
        super().perform(command)
        if isinstance(command, jobs.Notify) and command.state in jobs.FINISHED:
            self.cells += 1
            self._next_turn(command.job.partition("-")[0], self._random.uniform(*PAUSE_S))

    def _next_turn(self, session: str, after_s: float) -> None:
        self.clock.after(after_s, lambda: self._take_turn(session))

    def _take_turn(self, session: str) -> None:
        turn = self._turns[session]
        self._turns[session] += 1
        account = f"project{int(session[1:]) % PROJECTS}/{session}"
        seconds = self._random.uniform(*CELL_S)
        self.submit(f"{session}-{turn}", session, account=account, seconds=seconds, mib=STATE_MIB)


def measure(bench: Bench) -> list[Figure]:
    many, few = Team(bench.rounds(HOSTS, QUICK_HOSTS)), Team(FEW_HOSTS)
    shares: dict[str, list[float]] = {OURS: [], FEW: []}
    for team in (many, few):
        team.run_for(WARM_S)
        team.cells = 0
        team.events_s.clear()
        team.ticks_s.clear()
    busy = []
    for _ in range(bench.rounds(BLOCKS, 2)):
        for name, team in ((OURS, many), (FEW, few)):
            before_s = _spent_s(team)
            team.run_for(BLOCK_S)
            shares[name].append((_spent_s(team) - before_s) / BLOCK_S * 100)
        busy.append(len(many.runs))
    seconds = len(busy) * BLOCK_S
    tick_share = sum(many.ticks_s) / seconds
    facts: dict[str, Any] = {
        "hosts": len(many.devices) // DEVICES_PER_HOST,
        "devices": len(many.devices),
        "devices_busy_mean": round(sum(busy) / len(busy)),
        "sessions": many.session_count,
        "cells": many.cells,
        "cells_a_day": round(many.cells / seconds * DAY_S),
        "cells_a_day_for_a_whole_core": round((1 - tick_share) * DAY_S * many.cells / sum(many.events_s)),
    }
    title = f"decisions with the devices of {facts['hosts']:,} hosts: part of a core"
    return [
        figure(NAME, title, "%", shares, **facts),
        figure(NAME, "one event of a user or a device", "us", _beside(many.events_s, few.events_s)),
        figure(NAME, "one tick of the clock, four a second", "us", _beside(many.ticks_s, few.ticks_s)),
    ]


def _spent_s(team: Team) -> float:
    return sum(team.events_s) + sum(team.ticks_s)


def _beside(many_s: list[float], few_s: list[float]) -> dict[str, list[float]]:
    """Return as many samples of each, in microseconds."""
    least = min(len(many_s), len(few_s))
    return {OURS: [one * US for one in many_s[:least]], FEW: [one * US for one in few_s[:least]]}
