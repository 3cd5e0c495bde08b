"""Databases of every schema since the first are upgraded with all that is in them.

``databases`` has files that pools of earlier versions wrote: three jobs, their programs and journal, users.
A schema has several where tables changed under one number."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from pool_kit import Client, act, rest, running_pool
from throwaway_postgresql import Postgresql

from djinn_lab.pool.database import engine, upgrades
from djinn_lab.pool.database.address import checked_url, sqlite_url
from djinn_lab.pool.database.audit import read_chain
from djinn_lab.pool.database.history import newest_pool, read_events, read_jobs
from djinn_lab.pool.database.sessions import read_sessions
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.database.tables import metadata
from djinn_lab.pool.database.users import read_tokens, read_users
from djinn_lab.protocol.rest.jobs import JobView

FILES = sorted((Path(__file__).parent / "databases").glob("*.gz"))
FIRST = FILES[0]


def _any(_job: JobView) -> bool:
    return True


def unpacked(packed: Path, folder: Path) -> Path:
    file = folder / "pool.sqlite3"
    file.write_bytes(gzip.decompress(packed.read_bytes()))
    return file


def rows_of(file: Path) -> dict[str, int]:
    """Count the rows of each table."""
    with sqlite3.connect(file) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        counts = {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in tables
            if not name.startswith("sqlite_")
        }
    connection.close()
    return counts


def shape(connection: sa.Connection) -> dict[str, tuple[set[str], set[str]]]:
    """Return the names of columns and indexes of each table of this version."""
    found = sa.inspect(connection)
    return {
        name: (
            {column["name"] for column in found.get_columns(name)},
            {str(one["name"]) for one in found.get_indexes(name) if "duplicates_constraint" not in one},
        )
        for name in metadata.tables
    }


@pytest.fixture(scope="module")
def new_shape(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[set[str], set[str]]]:
    store = Store(sqlite_url(tmp_path_factory.mktemp("new") / "pool.sqlite3"))
    found = store.submit(shape).result()
    store.close()
    return found


@pytest.mark.parametrize("packed", FILES, ids=[file.name.split(".")[0] for file in FILES])
def test_every_schema_is_upgraded_and_a_copy_is_kept(
    packed: Path, tmp_path: Path, new_shape: dict[str, tuple[set[str], set[str]]]
) -> None:
    file = unpacked(packed, tmp_path)
    before = rows_of(file)
    schema = packed.name.removeprefix("schema-")[0]
    store = Store(sqlite_url(file))
    store.opened()
    assert store.submit(shape).result() == new_shape
    jobs = store.submit(lambda connection: read_jobs(connection, None, None, 10, _any)).result()
    assert len(jobs) == before["jobs"] == 3
    assert {one.state for one in jobs} <= {"DONE", "FAILED"}
    pool = store.submit(newest_pool).result()
    assert pool is not None
    assert store.submit(lambda connection: read_events(connection, pool, None, 10)).result()
    users = store.submit(read_users).result()
    assert "ann" in [name for name, *_ in users]
    assert {one.user for one in store.submit(read_tokens).result()} == {name for name, *_ in users}
    assert len(list(store.submit(lambda connection: list(read_chain(connection))).result())) == before.get(
        "audit", 0
    )
    assert len(store.submit(read_sessions).result()) == before.get("sessions", 0)
    store.close()
    (copy,) = tmp_path.glob(f"pool.sqlite3.schema-{schema}-*")
    assert rows_of(copy) == before
    after = rows_of(file)
    assert {name: after[name] for name in before if name != "audit_chain"} == {
        name: count for name, count in before.items() if name != "audit_chain"
    }
    again = Store(sqlite_url(file))
    again.opened()
    again.close()
    assert len(list(tmp_path.glob("pool.sqlite3.schema-*"))) == 1


def copied(file: Path, url: str) -> None:
    """Make the tables of an SQLite file, with their rows, in a database of PostgreSQL."""
    old = sa.MetaData()
    source, target = sa.create_engine(sqlite_url(file)), sa.create_engine(checked_url(url))
    with source.connect() as reading, target.begin() as writing:
        old.reflect(reading)
        for table in old.tables.values():
            for column in table.columns:
                column.type = column.type.as_generic()
                if isinstance(column.type, sa.Integer):
                    column.type = sa.BigInteger()
        old.create_all(writing)
        for table in old.sorted_tables:
            if rows := [row._asdict() for row in reading.execute(sa.select(table))]:
                writing.execute(sa.insert(table), rows)
            key = table.autoincrement_column
            if key is not None and rows:
                newest = sa.select(sa.func.max(key)).scalar_subquery()
                writing.execute(
                    sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table.name, key.name), newest))
                )
    source.dispose()
    target.dispose()


@pytest.mark.processes
@pytest.mark.parametrize("packed", FILES, ids=[file.name.split(".")[0] for file in FILES])
def test_every_schema_is_upgraded_on_postgresql(
    packed: Path,
    tmp_path: Path,
    postgresql: Postgresql,
    new_shape: dict[str, tuple[set[str], set[str]]],
) -> None:
    file = unpacked(packed, tmp_path)
    before, url = rows_of(file), postgresql.new_database()
    copied(file, url)
    store = Store(checked_url(url))
    store.opened()
    assert store.submit(shape).result() == new_shape
    jobs = store.submit(lambda connection: read_jobs(connection, None, None, 10, _any)).result()
    assert len(jobs) == before["jobs"] == 3
    users = store.submit(read_users).result()
    assert "ann" in [name for name, *_ in users]
    assert {one.user for one in store.submit(read_tokens).result()} == {name for name, *_ in users}
    assert len(store.submit(lambda connection: list(read_chain(connection))).result()) == before.get(
        "audit", 0
    )
    store.close()


def test_upgrade_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = unpacked(FIRST, tmp_path)
    before = rows_of(file)

    def fails(_connection: sa.Connection) -> None:
        raise sa.exc.OperationalError("", {}, sqlite3.OperationalError("disk I/O error"))

    monkeypatch.setattr(upgrades, "_give_tokens_a_table", fails)
    store = Store(sqlite_url(file))
    with pytest.raises(sa.exc.OperationalError):
        store.opened()
    store.close()
    assert rows_of(file) == before


def test_files_cover_every_schema() -> None:
    assert {int(file.name.removeprefix("schema-")[0]) for file in FILES} == set(
        range(1, engine.SCHEMA_VERSION)
    )


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_pool_serves_on_a_database_of_the_first_schema(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file, url = unpacked(FIRST, tmp_path), None
    if kind == "postgresql":
        url = request.getfixturevalue("postgresql").new_database()
        copied(file, url)
    with running_pool(tmp_path, database=url) as info:
        assert len(rest(info).jobs()) == 3
        with Client(info) as client:
            assert client.run(act("")).outcome == "done"
        assert len(rest(info).jobs()) == 4
        assert "ann" in [one.name for one in rest(info).users()]
