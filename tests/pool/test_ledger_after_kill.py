"""``kill -9`` of the server under load, again and again on one database: every job that it knew has ended,
and the usage ledger is what it was."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from pool_kit import Client, act, rest, running_pool, until_dead
from websockets.exceptions import ConnectionClosed

from djinn_lab.pool.database.tables import jobs, usage
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes

KILLS = 4


def load(info: RuntimeInfo, until_killed: threading.Event) -> None:
    """Run cells of one user, one after the other, until the pool is killed."""
    try:
        with Client(info) as client:
            while not until_killed.is_set():
                client.run(act("sleep 0.01", "", keep=False))
    except (ConnectionClosed, OSError, EOFError):
        assert until_killed.is_set()


def test_jobs_and_usage_survive_kills_at_any_moment(tmp_path: Path) -> None:
    moments = random.Random(7)
    ledger: list[tuple[object, ...]] = []
    known: set[str] = set()
    for _ in range(KILLS):
        with running_pool(tmp_path, "cpu:2") as info:
            with closing(rest(info)) as client:
                client.jobs(limit=1000)  # answered when what the start had to write is written
            found, rows = read(tmp_path)
            assert known <= set(found), "a job that the database knew is gone"
            assert set(found.values()) <= {"DONE", "WAITING"}, "a job ended because its pool was killed"
            assert rows[: len(ledger)] == ledger, "the ledger was rewritten"
            stretches = [(row[1], row[2], row[6]) for row in rows]
            assert len(set(stretches)) == len(stretches), "a stretch was charged twice"
            with closing(rest(info)) as client:
                accounts = {one.account: one.used[0] for one in client.queue().accounts}
            charged = sum(row[7] - row[6] for row in rows)
            assert sum(accounts.values()) == pytest.approx(charged, abs=1e-5 * (1 + len(rows)))
            killed = threading.Event()
            clients = [threading.Thread(target=load, args=(info, killed)) for _ in range(3)]
            for client_thread in clients:
                client_thread.start()
            time.sleep(moments.uniform(0.5, 1.2))
            killed.set()
            os.kill(info.pid, signal.SIGKILL)
            until_dead(info.pid)
            for client_thread in clients:
                client_thread.join(30)
        found, ledger = read(tmp_path)
        known = set(found)
    assert known
    assert ledger


def read(directory: Path) -> tuple[dict[str, str], list[tuple[object, ...]]]:
    """Read the state of each job, and the ledger's rows in order."""
    if not (directory / "pool.sqlite3").exists():
        return {}, []
    engine = sa.create_engine(f"sqlite:///{directory / 'pool.sqlite3'}")
    with engine.connect() as connection:
        states = {row.job: row.state for row in connection.execute(sa.select(jobs.c.job, jobs.c.state))}
        rows = [tuple(row) for row in connection.execute(sa.select(usage).order_by(usage.c.id))]
    engine.dispose()
    return states, rows
