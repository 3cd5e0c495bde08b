"""No client is notified of what the database does not have yet."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from pool_kit import Client, act, http, running_pool

from djinn_lab.pool.database.tables import jobs
from djinn_lab.protocol.messages import JobUpdate, QueryBlobs, SegmentResult, SubmitSegment
from djinn_lab.srg.program import encode_program

pytestmark = pytest.mark.processes
SILENCE_S = 0.5


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Lock the database against all other writers."""
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def test_uncommitted_job_is_not_reported(tmp_path: Path) -> None:
    with running_pool(tmp_path) as info, Client(info) as client, http(info) as api:
        client.run(act(""))
        with locked(tmp_path / "pool.sqlite3"):
            job = client.submit(act("", ""))
            with pytest.raises(TimeoutError):
                client.socket.recv(SILENCE_S)
            answers: list[str] = []
            asking = threading.Thread(target=lambda: answers.append(api.get(f"/v1/jobs/{job}").json()["job"]))
            asking.start()
            asking.join(SILENCE_S)
            assert not answers, "the API reported a job that the database does not have"
            assert api.get("/v1/alive").status_code == 200
        assert client.result(job).outcome == "done"
        asking.join(30)
        assert answers == [job]


def test_messages_of_a_session_keep_their_order(tmp_path: Path) -> None:
    """A message that waits for a commit delays the messages behind it."""
    with running_pool(tmp_path) as info, Client(info) as client:
        with locked(tmp_path / "pool.sqlite3"):
            job = client.submit(act("", ""))
            client.send(QueryBlobs(["0" * 64]))
        kinds = []
        while not {"SegmentResult", "BlobsMissing"} <= set(kinds):
            message = client.receive()
            kinds.append(type(message).__name__)
            if isinstance(message, JobUpdate | SegmentResult):
                assert message.job == job
        assert kinds[0] == "JobUpdate"


def test_code_with_a_character_that_postgresql_does_not_know(tmp_path: Path, database: str) -> None:
    with running_pool(tmp_path, database=database) as info, Client(info) as client:
        job, program = "0" * 32, encode_program(act(""))
        client.send(SubmitSegment(job, 0, "cell", "NORMAL", True, "cell end", 0, program, "s = '\0'"))
        assert client.result(job).outcome == "done"
    engine = sa.create_engine(database)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(jobs.c.job, jobs.c.state, jobs.c.code)).all()
    engine.dispose()
    assert [tuple(row) for row in rows] == [(job, "DONE", "s = '\ufffd'")]


def test_refused_cell_is_reported_once_it_is_committed(tmp_path: Path) -> None:
    with running_pool(tmp_path, memory_bytes=2**20) as info, Client(info) as client:
        with locked(tmp_path / "pool.sqlite3"):
            job = client.submit(b"this is no program")
            with pytest.raises(TimeoutError):
                client.socket.recv(SILENCE_S)
        result = client.result(job)
        assert result.outcome == "failed"
        with closing(sqlite3.connect(tmp_path / "pool.sqlite3")) as database:
            assert database.execute("select state from jobs where job = ?", (job,)).fetchall() == [
                ("FAILED",)
            ]
