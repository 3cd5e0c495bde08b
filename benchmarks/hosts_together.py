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
    """A cell of two branches on two devices of a pool. ``begun_s``: by cell, from the pool's first message
    to a worker until both devices run ops. ``together``: how many cells had both."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.begun_s: list[float] = []
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
        starts = schedule.node_start_s or ()
        firsts = [min(starts[one.node] for one in ran) for ran in schedule.measured_nodes.values()]
        self.begun_s.append(max(firsts))
        return took_s


class Actors:
    """The same branches, by an actor each."""

    def __init__(self, holders: Sequence[Any]) -> None:
        self._holders = holders
        self.begun_s: list[float] = []

    def cell(self) -> float:
        import ray

        started_s = perf_counter()
        called = [
            holder.branch.remote(factor, STEPS)
            for holder, factor in zip(self._holders, FACTORS, strict=False)
        ]
        answers = ray.get(called)
        took_s = perf_counter() - started_s
        self.begun_s.append(max(began_s for began_s, _ in answers) - started_s)
        return took_s


def gang_figures(bench: Bench, remote: Pool, local: Pool, holders: Sequence[Any]) -> list[Figure]:
    ours, theirs, plain = Gang(remote), Gang(local), Actors(holders)
    taken = bench.alternate({OURS: ours.cell, LOCAL: theirs.cell, PLAIN: plain.cell}, 20)
    count = len(taken[OURS])
    begun = {OURS: ours.begun_s[-count:], LOCAL: theirs.begun_s[-count:], PLAIN: plain.begun_s[-count:]}
    facts: dict[str, Any] = {
        "steps": STEPS,
        "cells": len(ours.begun_s),
        "on_two_devices": {OURS: ours.together, LOCAL: theirs.together},
    }
    return [
        figure(NAME, "a gang of two: until both devices run", "ms", scaled(begun, 1e3), **facts),
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
