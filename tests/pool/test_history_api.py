"""Use of devices and waits of cells over time, from the database and over the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from pool_kit import Client, act, http, rest, running_pool
from real_pool import wait_for

from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import OptionError
from djinn_lab.pool.api.history import history_of
from djinn_lab.pool.database import tables
from djinn_lab.pool.database.pool_lives import LifeWriter, PoolLife, read_lives
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.database.use_over_time import (
    BucketUse,
    BucketWaits,
    parts_of,
    read_use,
    read_waits,
)
from djinn_lab.protocol.messages import FETCH_CELL
from djinn_lab.protocol.rest.history import BUCKETS_MAX, HistorySpan

Stretch = tuple[float, float]
SPAN = HistorySpan.of(100.0, 295.0, 10.0)
"""Twenty buckets, read in three parts; the last one is shorter."""


def store_stretches(connection: sa.Connection, stretches: Iterable[Stretch], device: str = "cpu:0") -> None:
    rows = [
        {
            "job": "j",
            "segment": 0,
            "account": "vision/ann",
            "user": "ann",
            "device": device,
            "started_at_s": begins,
            "ended_at_s": ends,
            "memory_byte_s": 1.0,
            "transfer_bytes": 2.0,
        }
        for begins, ends in stretches
    ]
    for row in rows:
        connection.execute(sa.insert(tables.usage).values(row))


def store_cells(connection: sa.Connection, cells: Iterable[dict[str, object]]) -> None:
    """Store jobs as their views."""
    for number, cell in enumerate(cells):
        view = {"cell": "cell", "ops_total": 3, "started_at": None, "stages": {}, **cell}
        row = {"job": f"j{number}", "pool": "p", "session": "s", "user": "ann", "state": "DONE", "code": ""}
        row |= {"submitted_at": cell["submitted_at"], "view": msgspec.json.encode(view).decode()}
        connection.execute(sa.insert(tables.jobs).values(row))


def used(connection: sa.Connection, span: HistorySpan, now_s: float) -> list[BucketUse]:
    return [one for part in parts_of(span) for one in read_use(connection, span, part, now_s)]


def by_bucket(use: Iterable[BucketUse], count: int) -> list[float]:
    found = [0.0] * count
    for one in use:
        found[one.bucket] += one.seconds
    return found


@given(st.lists(st.tuples(st.integers(60, 340), st.integers(0, 90)), max_size=8))
def test_stretches_are_divided_over_the_buckets_in_which_they_passed(drawn: list[tuple[int, int]]) -> None:
    stretches = [(float(begins), float(begins + seconds)) for begins, seconds in drawn]
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        tables.metadata.create_all(connection)
        store_stretches(connection, stretches)
        found = by_bucket(used(connection, SPAN, now_s=500.0), SPAN.count)
    engine.dispose()
    for bucket, seconds in enumerate(found):
        begins, ends = SPAN.begins(bucket), SPAN.ends(bucket)
        passed = [max(0.0, min(last, ends) - max(first, begins)) for first, last in stretches]
        assert seconds == pytest.approx(sum(passed))


def test_either_database_sums_use_and_ranks_waits(database: str) -> None:
    store = Store(database)
    waited = [(101.0, 1.0), (102.0, 2.0), (103.0, 9.0), (125.5, 0.25)]
    cells: list[dict[str, object]] = [
        {"submitted_at": at, "started_at": at + s, "stages": {"queued": s / 2, "restoring": s / 2}}
        for at, s in waited
    ]
    cells += [
        {"submitted_at": 104.0},
        {"submitted_at": 105.0, "started_at": 106.0, "cell": FETCH_CELL, "ops_total": 0},
        {"submitted_at": 141.0, "started_at": 144.0},
        {"submitted_at": 296.0, "started_at": 297.0},
    ]

    def write(connection: sa.Connection) -> None:
        store_stretches(connection, [(95.0, 112.0), (290.0, 300.0), (294.0, 310.0)])
        store_stretches(connection, [(100.5, 101.0)], "cpu:1")
        store_cells(connection, cells)

    async def read() -> tuple[list[BucketUse], list[BucketWaits]]:
        await store.commit(write)
        use = await store.read(lambda connection: used(connection, SPAN, now_s=305.0))
        return use, [
            one
            for part in parts_of(SPAN)
            for one in await store.read(lambda connection, part=part: read_waits(connection, SPAN, part))
        ]

    use, waits = asyncio.run(read())
    store.close()
    assert sorted(use) == [
        BucketUse(0, "cpu:0", "vision/ann", "ann", 10.0),
        BucketUse(0, "cpu:1", "vision/ann", "ann", 0.5),
        BucketUse(1, "cpu:0", "vision/ann", "ann", 2.0),
        BucketUse(19, "cpu:0", "vision/ann", "ann", 5.0),
    ], "one stretch still ran, and its pool counts it"
    assert sorted(waits) == [
        BucketWaits(0, 3, 2.0, 9.0),
        BucketWaits(2, 1, 0.25, 0.25),
        BucketWaits(4, 1, 3.0, 3.0),
    ]


def test_a_pool_that_was_away_is_no_idle_pool() -> None:
    lives = [PoolLife("a", 90.0, 115.0, ("cpu:0",)), PoolLife("b", 135.0, 400.0, ("cpu:0", "cpu:1"))]
    found = history_of(SPAN, lives, [BucketUse(4, "cpu:1", "ann", "ann", 4.0)], [BucketWaits(4, 1, 0.5, 0.5)])
    first, second = found.devices
    assert (first.device, first.up_s[:5], first.up_s[-1]) == ("cpu:0", (10.0, 5.0, 0.0, 5.0, 10.0), 5.0)
    assert (second.up_s[:5], second.busy_s[:5]) == ((0.0, 0.0, 0.0, 5.0, 10.0), (0.0, 0.0, 0.0, 0.0, 4.0))
    assert found.waits.cells[3:5] == (0, 1)
    assert found.waits.median_s[3:5] == (None, 0.5)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ((200.0, 100.0, 10.0), "before"),
        ((100.0, 200.0, 0.0), "bucket_s"),
        ((0.0, 10.0 * BUCKETS_MAX, 1.0), "at least 10"),
        ((float("nan"), 200.0, 1.0), "finite"),
    ],
)
def test_a_span_that_cannot_be_shown_is_refused(asked: tuple[float, float, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        HistorySpan.of(*asked)


@pytest.mark.processes
def test_a_pool_tells_its_history_with_what_runs_now_and_remembers_earlier_pools(
    tmp_path: Path, database: str
) -> None:
    began = time.time()
    with running_pool(tmp_path, "cpu:2", database=database) as info, closing(rest(info)) as chief:
        token = chief.create_user("ann", account="vision/train").token
        with Client(info, token) as ann:
            assert ann.run(act("sleep 0.3")).outcome == "done"
            running = ann.submit(act("sleep 60"))
            ann.until(running, "RUNNING")
            wait_for(lambda: _used(chief, began) > 0.6)
            chief.cancel(running)
            ann.result(running)
        found = chief.history(began - 5, bucket_s=3600)
        assert [(one.account, one.user) for one in found.accounts] == [("vision/train/ann", "ann")]
        assert sum(found.waits.cells) == 2
        assert [device.device for device in found.devices] == ["cpu:0", "cpu:1"]
        ended = time.time()
    with running_pool(tmp_path, "cpu:1", database=database) as info, closing(rest(info)) as chief:
        earlier = chief.history(began - 5, ended, bucket_s=3600)
        assert earlier.accounts[0].device_s == pytest.approx(found.accounts[0].device_s, abs=0.5)
        first, second = earlier.devices
        assert sum(second.up_s) > 0.5
        assert sum(first.up_s) == pytest.approx(sum(second.up_s))
        with pytest.raises(OptionError, match="before now"):
            chief.history(time.time() + 60)
        with http(info) as web:
            assert web.get("/v1/history", params={"since": "yesterday"}).status_code == 422


def _used(chief: PoolClient, since: float) -> float:
    return sum(sum(one.device_s) for one in chief.history(since, bucket_s=3600).accounts)


def test_the_lives_of_pools_are_kept(database: str) -> None:
    store = Store(database)
    writer = LifeWriter("p", 100.0, ["cpu:0"])
    assert writer.due(100.0)
    store.put(writer.row(100.0))
    assert not writer.due(110.0)
    store.put(writer.row(140.0))
    found = asyncio.run(store.read(lambda connection: read_lives(connection, 120.0, 500.0)))
    store.close()
    assert found == [PoolLife("p", 100.0, 140.0, ("cpu:0",))]
