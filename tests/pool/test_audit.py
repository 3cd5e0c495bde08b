"""The audit: each change, refusal and fault is in the database, on either kind, and no row can be changed
unnoticed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from pool_kit import Client, act, http, new_user, rest, running_pool
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus

from djinn_lab.cli.app import build_app
from djinn_lab.errors import UserError
from djinn_lab.pool.database.engine import make_engine
from djinn_lab.pool.database.store import Store
from djinn_lab.protocol.messages import CancelJob
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes


def actions(info: RuntimeInfo) -> list[tuple[str, str, int]]:
    """Return user, action and status of all rows, oldest first, without the pool's own start."""
    with closing(rest(info)) as client:
        rows = client.audit(1000, after=0)
    return [(row.user, row.action, row.status) for row in rows if not row.action.startswith("pool ")]


def test_audit_records_changes_with_their_user_and_survives_the_pool(tmp_path: Path, database: str) -> None:
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        name, token = new_user(info)
        with http(info, token) as ann, http(info) as owner, Client(info, token) as client:
            job = client.submit(act("sleep 30"))
            client.until(job, "RUNNING")
            assert ann.post(f"/v1/jobs/{job}/cancel").status_code == 200
            assert ann.put("/v1/accounts/vision", json={"weight": 9.0}).status_code == 403
            assert owner.put("/v1/accounts/vision", json={"weight": 2.0}).status_code == 200
            assert ann.get("/v1/audit").status_code == 403
    with running_pool(tmp_path, "cpu:1", database=database) as info, http(info) as owner:
        rows = owner.get("/v1/audit").json()
        with closing(rest(info)) as client:
            me = client.status().user
    found = [(row["user"], row["action"], row["status"]) for row in rows]
    assert found == [
        ("", "pool started", 200),
        ("", "pool stopped", 200),
        (name, "GET /v1/audit", 403),
        (me, "PUT /v1/accounts/vision", 200),
        (name, "PUT /v1/accounts/vision", 403),
        (name, f"POST /v1/jobs/{job}/cancel", 200),
        (name, "session opened", 200),
        (me, "POST /v1/users", 201),
        ("", "pool started", 200),
    ]
    assert rows[3]["body"] == '{"weight":2.0}'
    assert token not in str(rows)


def test_audit_has_what_sessions_did_and_were_refused(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info:
        name, token = new_user(info)
        with Client(info, token) as client:
            client.signal("IO_WAIT", -1.0)
            assert client.run(b"no graph").outcome == "failed"
            job = client.submit(act("sleep 30"))
            client.until(job, "RUNNING")
            client.send(CancelJob(job))
            assert client.result(job).outcome == "cancelled"
            assert client.run(act("crash")).outcome == "failed"
        found = [row for row in actions(info) if row[1] != "POST /v1/users"]
    assert found == [
        (name, "session opened", 200),
        (name, "signal", 422),
        (name, "submit", 422),
        (name, "job cancelled", 200),
        ("", "worker died", 500),
        ("", "worker died", 500),  # the pool ran the cell once more
    ]


def test_failed_logins_are_counted_and_do_not_displace_other_rows(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info:
        with httpx.Client(base_url=info.url, trust_env=False) as web:
            for number in range(50):
                wrong = {"Authorization": f"Bearer guess-{number}"}
                assert web.get("/v1/status", headers=wrong).status_code == 401
        with pytest.raises(InvalidStatus, match="401"):
            Client(info, "guess")
        assert actions(info) == [("", "GET /v1/status", 401), ("", "WebSocket /v1/session", 401)]
    with running_pool(tmp_path, "cpu:1") as info:
        with closing(rest(info)) as client:
            rows = client.audit(action="GET /v1/status")
    assert [row.body for row in rows] == [
        "49 further refusals of this kind within a minute",
        "without a valid token, from 127.0.0.1",
    ]


@contextmanager
def changed(database: str) -> Iterator[sa.Connection]:
    """Change the database past the pool, as its owner can."""
    engine = make_engine(database)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


CHANGES = {
    "update audit set body = 'nothing' where id = 3": "row 3: it was altered",
    "delete from audit where id = 3": "row 3: it is missing",
    "delete from audit where id = 1": "row 2: it was altered, or a row before it",
    "delete from audit where id >= 4": "row 4: it is missing, with all up to row 5",
    "update audit_chain set head_row = 4": "row 5: the head of the chain is row 4, which is not",
}


def test_each_change_past_the_pool_is_found(tmp_path: Path, database: str) -> None:
    with running_pool(tmp_path, "cpu:1", database=database) as info, http(info) as owner:
        for weight in (2.0, 3.0, 4.0):
            owner.put("/v1/accounts/vision", json={"weight": weight})
    command = ["audit", "verify", "--database", database]
    for change, where in CHANGES.items():
        before = CliRunner().invoke(build_app(), command)
        assert before.output.startswith("5 rows fit one another. Note the head elsewhere: --head 5:")
        with put_back(database, "audit", "audit_chain"):
            with changed(database) as connection:
                connection.execute(sa.text(change))
            with pytest.raises(UserError, match="broken at " + where):
                CliRunner().invoke(build_app(), command, catch_exceptions=False)


@contextmanager
def put_back(database: str, *tables: str) -> Iterator[None]:
    """Give tables the rows that they had before."""
    rows: dict[sa.Table, list[dict[str, object]]] = {}
    with changed(database) as connection:
        for name in tables:
            table = sa.Table(name, sa.MetaData(), autoload_with=connection)
            rows[table] = [dict(row._mapping) for row in connection.execute(sa.select(table))]
    yield
    with changed(database) as connection:
        for table, kept in rows.items():
            connection.execute(table.delete())
            connection.execute(table.insert(), kept)


def test_a_noted_head_shows_a_chain_that_was_cut_with_its_head(tmp_path: Path, database: str) -> None:
    with running_pool(tmp_path, "cpu:1", database=database) as info, http(info) as owner:
        for weight in (2.0, 3.0):
            owner.put("/v1/accounts/vision", json={"weight": weight})
        noted = CliRunner().invoke(build_app(), ["audit", "verify"]).output.split()[-1]
    command = ["audit", "verify", "--database", database]
    with changed(database) as connection:
        connection.execute(sa.text("delete from audit where id >= 2"))
        connection.execute(
            sa.text("update audit_chain set head_row = 1, head_hash = (select hash from audit)")
        )
    assert "1 rows fit" in CliRunner().invoke(build_app(), command).output
    with pytest.raises(UserError, match="which was noted as the last one"):
        CliRunner().invoke(build_app(), [*command, "--head", noted], catch_exceptions=False)


def test_rows_removed_while_the_pool_runs_leave_a_break(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info, http(info) as owner:
        owner.put("/v1/accounts/vision", json={"weight": 2.0})
        with changed(f"sqlite:///{tmp_path / 'pool.sqlite3'}") as connection:
            connection.execute(sa.text("delete from audit where id = 2"))
            connection.execute(
                sa.text("update audit_chain set head_row = 1, head_hash = (select hash from audit)")
            )
        owner.put("/v1/accounts/vision", json={"weight": 3.0})
        with pytest.raises(UserError, match="broken at row 2: it is missing"):
            CliRunner().invoke(build_app(), ["audit", "verify"], catch_exceptions=False)


def test_a_database_without_a_chain_gets_one(tmp_path: Path, database: str) -> None:
    with running_pool(tmp_path, "cpu:1", database=database) as info, http(info) as owner:
        owner.put("/v1/accounts/vision", json={"weight": 2.0})
    with changed(database) as connection:
        connection.execute(sa.text("alter table audit drop column hash"))
        connection.execute(sa.text("alter table jobs drop column resume"))
        connection.execute(sa.text("drop table audit_chain"))
        connection.execute(sa.text("drop table users"))
        connection.execute(
            sa.text(
                "create table users (name varchar primary key, role varchar not null, "
                "token_digest varchar not null unique, account varchar)"
            )
        )
        connection.execute(sa.text("update schema_version set version = 2"))
    store = Store(database)
    store.opened()
    store.close()
    found = CliRunner().invoke(build_app(), ["audit", "verify", "--database", database])
    assert found.output.startswith("3 rows fit one another.")


def test_audit_alone_takes_the_options_of_its_list(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1") as info, http(info) as owner:
        owner.put("/v1/accounts/vision", json={"weight": 2.0})
        shown = CliRunner().invoke(build_app(), ["audit", "--json", "--limit", "1"], catch_exceptions=False)
        listed = CliRunner().invoke(build_app(), ["audit", "list", "--json", "--limit", "1"])
        assert shown.exit_code == 0
        assert json.loads(shown.output) == json.loads(listed.output)
        wrong = CliRunner().invoke(build_app(), ["audit", "--json", "verify"])
        assert wrong.exit_code == 2
        assert "give them after it" in wrong.output
