"""What takes several hosts at once: a gang that begins, and many sessions with small cells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, figure
from benchmarks.hosts_contenders import LOCAL, NAME, PLAIN, Pool, branch
from benchmarks.samples import scaled
from benchmarks.scale_live import Ask, load_of
from benchmarks.scale_sessions import record_cell
from djinn_lab.client.rest import PoolClient
from djinn_lab.jobs import Terms

FACTORS = (1.0, 0.5)
STEPS = 60
"""The pool takes a second device only for work of some ten milliseconds."""
GANG = Terms(gang=len(FACTORS), gang_min=len(FACTORS))
SESSIONS, CELLS, OPS = 50, 4, 10


class Gang:
    """A cell of two branches on two devices of a pool. ``beyond_s``: by cell, what it took beyond the ops of
    the device that had more of them. ``together``: how many cells had both."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.beyond_s: list[float] = []
        self.together = 0

    def cell(self) -> float:
        """The whole cell with its result, in seconds."""
        started_s = perf_counter()
        with self._pool.session.capture("gang", terms=GANG) as cell:
            found = torch.stack([branch(factor, STEPS)[0, 0] for factor in FACTORS])
        assert found.tolist()[0] > 0
        took_s = perf_counter() - started_s
        self.together += cell.report.gang.startswith(f"It ran on {len(FACTORS)} devices")
        assert cell.report.job is not None
        with closing(PoolClient(self._pool.info.url, self._pool.info.token)) as client:
            schedule = client.schedule(cell.report.job)
        taken_s = [
            ended_s - began_s
            for began_s, ended_s in zip(schedule.node_start_s or (), schedule.node_end_s or (), strict=True)
        ]
        busy_s = [sum(taken_s[one.node] for one in ran) for ran in schedule.measured_nodes.values()]
        self.beyond_s.append(took_s - max(busy_s))
        return took_s


class Actors:
    """The same branches, by an actor each."""

    def __init__(self, holders: Sequence[Any]) -> None:
        self._holders = holders
        self.beyond_s: list[float] = []

    def cell(self) -> float:
        import ray

        started_s = perf_counter()
        called = [
            holder.branch.remote(factor, STEPS)
            for holder, factor in zip(self._holders, FACTORS, strict=False)
        ]
        answers = ray.get(called)
        took_s = perf_counter() - started_s
        self.beyond_s.append(took_s - max(branch_s for branch_s, _ in answers))
        return took_s


def gang_figures(bench: Bench, remote: Pool, local: Pool, holders: Sequence[Any]) -> list[Figure]:
    ours, theirs, plain = Gang(remote), Gang(local), Actors(holders)
    taken = bench.alternate({OURS: ours.cell, LOCAL: theirs.cell, PLAIN: plain.cell}, 20)
    count = len(taken[OURS])
    beyond = {OURS: ours.beyond_s[-count:], LOCAL: theirs.beyond_s[-count:], PLAIN: plain.beyond_s[-count:]}
    facts: dict[str, Any] = {
        "steps": STEPS,
        "cells": len(ours.beyond_s),
        "on_two_devices": {OURS: ours.together, LOCAL: theirs.together},
    }
    return [
        figure(NAME, "a gang of two: beyond its longer branch", "ms", scaled(beyond, 1e3), **facts),
        figure(NAME, "a gang of two: the cell, with its result", "ms", scaled(taken, 1e3), **facts),
    ]


def sessions_figure(bench: Bench, remote: Pool, local: Pool, holders: Sequence[Any]) -> Figure:
    """Every session, or client, hands in its next cell once it has the answer to its last one."""
    program, sessions = record_cell(OPS), bench.rounds(SESSIONS, 5)

    def cells_of(ask: Ask) -> Callable[[], float]:
        def sample() -> float:
            started_s = perf_counter()
            load = ask("in turns", CELLS)
            took_s = perf_counter() - started_s
            assert load.ended == {"done": sessions * CELLS}, load.ended
            return sessions * CELLS / took_s

        return sample

    def plain() -> float:
        async def client(number: int) -> None:
            for _ in range(CELLS):
                await holders[number % len(holders)].products.remote(OPS)

        async def clients() -> None:
            await asyncio.gather(*(client(number) for number in range(sessions)))

        started_s = perf_counter()
        asyncio.run(clients())
        return sessions * CELLS / (perf_counter() - started_s)

    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(load_of(pool.info, program, sessions, forked=False))
            for pool in (remote, local)
        )
        contenders = {OURS: cells_of(ours), LOCAL: cells_of(theirs), PLAIN: plain}
        taken = bench.alternate(contenders, 9)
    name = f"cells of {SESSIONS} sessions on three devices"
    return figure(NAME, name, "cells/s", taken, sessions=sessions, ops=OPS)
