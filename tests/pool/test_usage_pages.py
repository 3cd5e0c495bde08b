"""Usage of jobs, page by page: no job twice and none left out, also where jobs share a moment."""

from __future__ import annotations

from contextlib import closing

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from pool_kit import Client, act, rest
from real_pool import wait_for

from djinn_lab.client import rest as rest_module
from djinn_lab.errors import OptionError, PoolError
from djinn_lab.pool.database import tables
from djinn_lab.pool.database.usage_history import read_used
from djinn_lab.protocol.rest.jobs import JobUsage
from djinn_lab.protocol.runtime_file import RuntimeInfo


def stored(connection: sa.Connection, moments: list[int], stretches: list[int], **fields: object) -> None:
    """Store jobs ``j0``, ``j1`` and so on, submitted at ``moments``. A job with 0 stretches never ran.
    ``fields``: of all their views."""
    for number, (moment, count) in enumerate(zip(moments, stretches, strict=True)):
        job = f"j{number}"
        row = {"job": job, "pool": "p", "session": "s", "user": "ann", "state": "DONE", "code": ""}
        view = msgspec.json.encode({"priority": "HIGH", "predicted_s": None} | fields).decode()
        connection.execute(sa.insert(tables.jobs).values(row | {"submitted_at": moment, "view": view}))
        for start in range(count):
            used = {"job": job, "segment": 0, "account": "ann", "user": "ann", "device": "cpu:0"}
            used |= {
                "started_at_s": start,
                "ended_at_s": start + 0.5,
                "memory_byte_s": 1,
                "transfer_bytes": 2,
            }
            connection.execute(sa.insert(tables.usage).values(used))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12),
    st.integers(1, 5),
    st.integers(-1, 3),
)
def test_pages_together_are_the_whole(jobs: list[tuple[int, int]], limit: int, since: int) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        tables.metadata.create_all(connection)
        stored(connection, [moment for moment, _ in jobs], [count for _, count in jobs])
        whole = read_used(connection, since, 1000)
        pages: list[str] = []
        before = None
        while page := read_used(connection, since, limit, before):
            assert len(page) <= limit
            pages = [row.job for row in page] + pages
            before = page[0].job
        assert pages == [row.job for row in whole]
        assert {row.job: row.stretches for row in whole} == {
            f"j{number}": count for number, (moment, count) in enumerate(jobs) if count and moment > since
        }
        assert all(row.run_s == 0.5 * row.stretches for row in whole)
    engine.dispose()


@pytest.mark.parametrize(("runs", "predicted_s"), [(2, 9.0), (0, None)])
def test_predicted_seconds_are_those_of_the_whole_job(runs: int, predicted_s: float | None) -> None:
    whole = {"device_s": 9.0, "peak_bytes": 1, "runs": runs}
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        tables.metadata.create_all(connection)
        stored(connection, [1], [1], segments=3, predicted_s=0.1, predicted=whole)
        assert [row.predicted_s for row in read_used(connection, 0, 10)] == [predicted_s]
    engine.dispose()


def test_a_client_reads_page_by_page(shared_pool: RuntimeInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_module, "USAGE_PAGE", 2)
    with Client(shared_pool) as client, closing(rest(shared_pool)) as asks:
        jobs = []
        for _ in range(5):
            job = client.submit(act(""))
            client.result(job)
            jobs.append(job)
        wait_for(lambda: [row.job for row in asks.usage(limit=5)] == jobs)
        assert [row.job for row in asks.usage(limit=3)] == jobs[2:]
        with pytest.raises(OptionError, match="limit"):
            asks._read(list[JobUsage], "/v1/usage", {"limit": 2001})
        with pytest.raises(PoolError, match="no job"):
            asks._read(list[JobUsage], "/v1/usage", {"before": "zzz"})
