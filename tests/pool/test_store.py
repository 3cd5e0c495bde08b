"""The database thread: batches, order, failures, bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from throwaway_postgresql import Postgresql

from djinn_lab import jobs
from djinn_lab.journal import Handled
from djinn_lab.pool.database import batch as batch_module
from djinn_lab.pool.database import history
from djinn_lab.pool.database import store as store_module
from djinn_lab.pool.database.address import checked_url, sqlite_url
from djinn_lab.pool.database.engine import LeadTaken, SchemaMismatch
from djinn_lab.pool.database.store import Store, program_row, write_measurement
from djinn_lab.pool.database.users import read_users, write_user
from djinn_lab.srg.curves import DeviceCurves


def handled(seq: int) -> Handled:
    return Handled(seq, "pool", jobs.ClockTicked(float(seq)), [])


def test_reads_see_what_was_written_before(database: str) -> None:
    store = Store(database)
    assert store.opened() == 0
    for seq in range(1, 2001):
        store.journal(handled(seq))
    events = asyncio.run(store.read(lambda connection: history.read_events(connection, "pool", 1990, 100)))
    assert [event.seq for event in events] == list(range(1991, 2001))
    store.close()
    again = Store(database)
    assert again.opened() == 2000
    again.close()


def test_one_bad_write_takes_nothing_with_it(database: str) -> None:
    store = Store(database)
    store.write(write_user("ann", "user", None))
    store.write(write_user("ann", "user", None))
    store.write(write_user("bob", "user", "vision/train"))
    assert [row[0] for row in store.submit(read_users).result()] == ["ann", "bob"]
    store.close()


def test_one_bad_row_loses_no_other(database: str) -> None:
    store = Store(database)
    for seq in (1, 2, 2, 3):
        store.journal(handled(seq))
    events = asyncio.run(store.read(lambda connection: history.read_events(connection, "pool", 0, 100)))
    assert [event.seq for event in events] == [1, 2, 3]
    store.close()


@pytest.mark.parametrize("name", [2**64, "\ud800"])
def test_a_value_that_no_database_takes_fails_alone(database: str, name: object) -> None:
    store = Store(database)
    query = sa.text("select * from users where name = :name")
    future = store.submit(lambda connection: connection.execute(query, {"name": name}))
    store.write(write_user("ann", "user", None))
    with pytest.raises(sa.exc.SQLAlchemyError):
        future.result()
    assert [row[0] for row in store.submit(read_users).result()] == ["ann"]
    store.close()


def test_a_read_that_fails_says_so(database: str) -> None:
    store = Store(database)
    future = store.submit(lambda connection: connection.execute(sa.text("select * from nowhere")))
    with pytest.raises(sa.exc.DBAPIError, match="nowhere"):
        future.result()
    store.close()


@pytest.mark.parametrize("error", [KeyError("absent"), RuntimeError("a bug"), TypeError("no number")])
def test_work_that_raises_gives_its_caller_the_error_and_the_store_works_on(
    database: str, error: Exception
) -> None:
    def fail(connection: sa.Connection) -> None:
        raise error

    store = Store(database)
    store.write(write_user("ann", "user", None))
    failing = [store.submit(fail), store.submit(read_users), store.submit(fail)]
    store.write(fail)
    for future in (failing[0], failing[2]):
        assert future.exception(timeout=60) is error
    assert [row[0] for row in failing[1].result(timeout=60)] == ["ann"]
    assert [row[0] for row in store.submit(read_users).result(timeout=60)] == ["ann"]
    store.close()


def test_a_fault_of_the_store_reaches_all_who_wait(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    store = Store(database)
    store.opened()
    monkeypatch.setattr(store, "_take_later", fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a bug"):
            store.submit(read_users).result(timeout=60)
    with pytest.raises(RuntimeError, match="a bug"):
        store.ended.result(timeout=60)
    store.close()


def test_only_the_newest_programs_are_kept(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "PROGRAM_JOBS_MAX", 3)
    monkeypatch.setattr(store_module, "TRIM_EVERY_S", 0.0)
    store = Store(database)
    for number in range(6):
        store.put(program_row(f"job{number}", 0, b"x" * 10))
    store.submit(read_users).result()

    def is_kept(job: str) -> bool:
        return (
            store.submit(lambda connection: history.read_program(connection, job, None, [0])).result()
            is not None
        )

    kept = [number for number in range(6) if is_kept(f"job{number}")]
    assert kept == [3, 4, 5]
    store.close()


def test_a_database_of_another_schema_is_refused(database: str) -> None:
    store = Store(database)
    store.submit(
        lambda connection: connection.execute(sa.text("update schema_version set version = 99"))
    ).result()
    store.close()
    again = Store(database)
    with pytest.raises(SchemaMismatch, match="schema 99"):
        again.opened()
    again.close()


def test_write_ahead_log(tmp_path: Path) -> None:
    store = Store(sqlite_url(tmp_path / "db"))
    mode = store.submit(
        lambda connection: connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    ).result()
    assert mode == "wal"
    store.close()


def counted(database: str, table: str) -> int:
    """Count the rows of a table over another connection."""
    engine = sa.create_engine(database)
    with engine.connect() as other:
        found = other.scalar(sa.select(sa.func.count()).select_from(sa.table(table)))
    engine.dispose()
    assert found is not None
    return found


def test_committed_means_that_others_see_it(database: str) -> None:
    store = Store(database)
    store.opened()
    asyncio.run(store.commit(write_user("ann", "user", None)))
    assert counted(database, "users") == 1
    store.close()


def test_a_commit_that_fails_says_so_and_loses_no_other(database: str) -> None:
    store = Store(database)

    async def three() -> list[BaseException | None]:
        works = [write_user("ann", "user", None), write_user("ann", "user", None)]
        works.append(write_user("bob", "user", None))
        return await asyncio.gather(*map(store.commit, works), return_exceptions=True)

    first, second, third = asyncio.run(three())
    assert (first, third) == (None, None)
    assert isinstance(second, sa.exc.IntegrityError)
    assert [row[0] for row in store.submit(read_users).result()] == ["ann", "bob"]
    store.close()


def fails(connection: sa.Connection) -> None:
    connection.execute(sa.text("nonsense"))


@pytest.mark.parametrize("bad", [False, True], ids=["plainly", "with a bad write"])
def test_rows_of_all_kinds_and_works_appear_at_once(database: str, bad: bool) -> None:
    store = Store(database)
    store.opened()
    seen: list[int] = []
    store.put(program_row("job", 0, b"x"))
    store.journal(handled(1))
    if bad:
        store.write(fails)
    store.submit(
        lambda _: seen.extend(counted(database, table) for table in ("journal", "programs"))
    ).result()
    assert set(seen) == {0}, "a part was committed before the rest"
    assert (counted(database, "journal"), counted(database, "programs")) == (1, 1)
    store.close()


def test_an_upsert_takes_the_place_of_the_row_with_its_keys(database: str) -> None:
    store = Store(database)
    slow, fast = (DeviceCurves.of_rates(rate, 1e9, 1e-6) for rate in (1e9, 2e9))
    encode = msgspec.msgpack.encode
    store.write(write_measurement("gpu", 1, "2.9", encode(slow)))
    store.write(write_measurement("gpu", 2, "2.9", encode(slow)))
    store.write(write_measurement("gpu", 1, "2.9", encode(fast)))
    found = store.submit(history.read_measurements).result()
    assert {key: one.curves for key, one in found.items()} == {
        ("gpu", 1, "2.9"): fast,
        ("gpu", 2, "2.9"): slow,
    }
    store.close()


def test_measurements_in_another_form_are_left_out(database: str) -> None:
    """Such a device is measured again; the pool starts nevertheless."""
    store = Store(database)
    curves = DeviceCurves.of_rates(1e9, 1e9, 1e-6)
    store.write(write_measurement("new", 1, "2.9", msgspec.msgpack.encode(curves)))
    store.write(write_measurement("old", 1, "2.9", msgspec.msgpack.encode({"flops_per_s": 1.0})))
    store.write(write_measurement("torn", 1, "2.9", b"\xff"))
    assert set(store.submit(history.read_measurements).result()) == {("new", 1, "2.9")}
    store.close()


def test_waiting_on_a_lost_database_raises(database: str) -> None:
    store = Store(database)
    store.opened()

    def break_it(connection: sa.Connection) -> None:
        connection.invalidate()

    with pytest.raises(sa.exc.SQLAlchemyError):
        store.submit(break_it).result()
    with pytest.raises(sa.exc.SQLAlchemyError):
        store.ended.result(10)
    with pytest.raises(sa.exc.SQLAlchemyError):
        asyncio.run(store.commit(write_user("ann", "user", None)))
    store.close()


def test_store_without_its_connection_writes_no_more(postgresql: Postgresql) -> None:
    """It may believe that it leads; another one does."""
    url = checked_url(postgresql.new_database())
    first = Store(url, "the first")
    first.opened()
    second = Store(url, "the second", standby=True)
    second.waits.result(10)
    assert second.leader == "the first"
    postgresql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'the first'"
    )
    second.opened()
    first.journal(handled(1))
    with pytest.raises(sa.exc.SQLAlchemyError):
        asyncio.run(first.commit(write_user("ann", "user", None)))
    with pytest.raises(sa.exc.SQLAlchemyError):
        first.flush().result()
    asyncio.run(second.commit(write_user("bob", "user", None)))
    assert [row[0] for row in second.submit(read_users).result()] == ["bob"]
    assert counted(url, "journal") == 0
    first.close()
    second.close()


def test_one_store_at_a_time(database: str) -> None:
    first = Store(database, "the first")
    first.opened()
    refused = Store(database, "the second")
    with pytest.raises(LeadTaken, match="the first uses it"):
        refused.opened()
    refused.close()
    first.close()
    second = Store(database, "the second")
    second.opened()
    second.close()
