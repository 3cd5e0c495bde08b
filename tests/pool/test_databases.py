"""Which databases a pool can use, and the errors for those that it cannot."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from pool_kit import Client, act, running_pool
from throwaway_postgresql import PASSWORD, Postgresql

from djinn_lab.errors import OptionError, PoolError
from djinn_lab.pool.database.address import checked_url, shown
from djinn_lab.pool.database.engine import SchemaMismatch, unusable
from djinn_lab.pool.database.store import Store


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgresql://ann:secret@db/pool", "postgresql+psycopg://ann:secret@db/pool"),
        ("postgres://db/pool", "postgresql+psycopg://db/pool"),
        ("postgresql+psycopg2://db/pool?sslmode=require", "postgresql+psycopg://db/pool?sslmode=require"),
        ("sqlite:////var/lib/pool.db", "sqlite:////var/lib/pool.db"),
        ("sqlite:///pool.db", f"sqlite:///{Path.cwd() / 'pool.db'}"),
    ],
)
def test_addresses(given: str, used: str) -> None:
    assert checked_url(given) == used
    assert checked_url(used) == used


@pytest.mark.parametrize(
    "given",
    ["pool.db", "", "sqlite://", "sqlite:///:memory:", "mysql://ann:secret@db/pool", "x://a:secret@[/"],
)
def test_invalid_database_url_is_refused_without_its_secret(given: str) -> None:
    with pytest.raises(OptionError) as caught:
        checked_url(given)
    assert "secret" not in str(caught.value)
    assert "postgresql://" in str(caught.value)


def test_a_password_is_never_shown() -> None:
    url = "postgresql+psycopg://ann:s3cret@db/pool?password=s3cret"
    error = sa.exc.OperationalError("", {}, Exception("no s3cret for you"))
    for text in (shown(url), str(unusable(url, error)), str(unusable(url, SchemaMismatch("schema 1")))):
        assert "s3cret" not in text
        assert "db/pool" in text


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (sqlite3.SQLITE_FULL, "Free some space"),
        (sqlite3.SQLITE_IOERR_WRITE, "Free some space"),
        (sqlite3.SQLITE_BUSY, "Another program holds it"),
        (sqlite3.SQLITE_READONLY, "can be written by this user"),
        (sqlite3.SQLITE_CANTOPEN, "can be written by this user"),
        (sqlite3.SQLITE_NOTADB, "It stays as it is. Put back a copy"),
        (sqlite3.SQLITE_CORRUPT, "It stays as it is. Put back a copy"),
        (sqlite3.SQLITE_ERROR, "It stays as it is."),
    ],
)
def test_advice_for_an_unusable_database_loses_nothing(code: int, advice: str, tmp_path: Path) -> None:
    cause = sqlite3.OperationalError("as SQLite says it")
    cause.sqlite_errorcode = code
    found = unusable(f"sqlite:///{tmp_path / 'db'}", sa.exc.OperationalError("", {}, cause))
    assert advice in found.advice
    assert not {"move", "delete", "remove", "empty"} & set(found.advice.lower().replace(".", " ").split())


def test_missing_database_driver_names_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    url = checked_url("postgresql://db/pool")
    store = Store(url)
    with pytest.raises(ImportError) as caught:
        store.opened()
    assert "pip install 'djinn-lab[postgresql]'" in str(unusable(url, caught.value))
    store.close()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"password": "hunter2"}, "Check user and password in DJINN_DATABASE"),
        ({"database": "nowhere"}, "createdb"),
        ({"port": 9}, "Is the server up"),
    ],
    ids=["password", "name", "port"],
)
def test_a_pool_that_cannot_use_its_database_says_why(
    tmp_path: Path, postgresql: Postgresql, wrong: dict[str, str | int], complaint: str
) -> None:
    url = postgresql.url(str(wrong.get("database", "postgres")), str(wrong.get("password", PASSWORD)))
    url = url.replace(f":{postgresql.port}/", f":{wrong.get('port', postgresql.port)}/")
    with pytest.raises(PoolError) as caught, running_pool(tmp_path, "cpu:1", database=url):
        pass
    assert complaint in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("hunter2", PASSWORD, "open%3A"))


@pytest.mark.processes
def test_a_pool_on_postgresql_shows_its_password_to_no_process_list_and_no_worker(
    tmp_path: Path, postgresql: Postgresql
) -> None:
    with running_pool(tmp_path, "cpu:1", database=postgresql.new_database()) as info, Client(info) as client:
        assert client.run(act("")).outcome == "done"
        server = psutil.Process(info.pid)
        workers = server.children()
        assert workers
        for process in (server, *workers):
            assert "postgresql" not in " ".join(process.cmdline())
        for worker in workers:
            assert "DJINN_DATABASE" not in worker.environ()
        assert PASSWORD not in (tmp_path / "pool.log").read_text()
        assert PASSWORD not in (tmp_path / "pool.json").read_text()
