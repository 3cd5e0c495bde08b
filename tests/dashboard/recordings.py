"""Recordings of simulated pools, as databases."""

from __future__ import annotations

from pathlib import Path

import msgspec
import sqlalchemy as sa

from djinn_lab import engine, journal
from djinn_lab.jobs.fairness import ShareState
from djinn_lab.memory import POLICIES
from djinn_lab.pool.database import tables
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.simulator.pool import SimulatedPool

POOL = "recorded"


class JournaledSimulation(SimulatedPool):
    """A simulated pool that keeps its journal."""

    def __init__(self, devices: int, memory_mib: int) -> None:
        self.records: list[journal.Record] = []
        super().__init__(devices, memory_mib)

    def start(self) -> None:
        opened = engine.PoolOpened(0.0, "default", ShareState(), POLICIES["default"], journal.this_version())
        self.send(opened)
        super().start()

    def send(self, event: engine.Event) -> None:
        commands = self.engine.handle(event)
        if not self.engine.idle:
            self.records.append(journal.record(len(self.records) + 1, POOL, event, commands))
        self._commands.put(commands)
        self._commands.run()


def two_cells() -> JournaledSimulation:
    """Ann's cell runs from 1 to 5 s, Bob's, which comes at 2 s, from 5 to 6 s."""
    pool = JournaledSimulation(1, 100)
    for name in ("ann", "bob"):
        pool.open(name)
    pool.run(1.0)
    pool.submit("first", "ann", seconds=4.0, mib=20)
    pool.run(2.0)
    pool.submit("second", "bob", seconds=1.0, mib=20)
    pool.run(10.0)
    pool.close("bob")
    assert pool.outcomes == {"first": "DONE", "second": "DONE"}
    return pool


def write_recording(path: Path, pool: JournaledSimulation, drop: int | None = None) -> Path:
    """Write a pool's database. ``drop``: the number of an event that is left out."""
    made = sa.create_engine(f"sqlite:///{path}")
    with made.begin() as connection:
        tables.metadata.create_all(connection)
        for record in pool.records:
            if record.seq != drop:
                row = msgspec.structs.asdict(record)
                connection.execute(sa.insert(tables.journal).values(row))
        for job in pool.started_s:
            connection.execute(sa.insert(tables.jobs).values(_row(pool, job)))
    made.dispose()
    return path


def _row(pool: JournaledSimulation, job: str) -> dict[str, object]:
    known = pool.queue.job(job)
    assert known is not None
    view = JobView(
        job,
        session=known.session,
        user=known.user,
        cell=f"cell of {known.user}",
        state="DONE",
        reason="Done.",
        device="cpu:0",
        submitted_at=known.submitted_at_s,
        started_at=known.started_at_s,
        finished_at=known.ended_at_s,
        ops_done=10,
        ops_total=10,
    )
    return {
        "job": job,
        "pool": POOL,
        "session": known.session,
        "user": known.user,
        "state": "DONE",
        "submitted_at": known.submitted_at_s,
        "view": msgspec.json.encode(view).decode(),
        "code": f"the code of {job}",
    }
