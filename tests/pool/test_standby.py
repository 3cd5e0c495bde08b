"""Two pools on one database: one leads, the other takes over when it is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from pool_kit import STAND_IN, Client, act, http, new_user, rest, running_pool, until_dead
from real_pool import wait_for
from throwaway_postgresql import Postgresql

from djinn_lab.client.addresses import leader_url
from djinn_lab.client.connect import connect
from djinn_lab.errors import PoolError, PoolNotFound
from djinn_lab.protocol.runtime_file import RuntimeInfo

MEMORY_BYTES = 2**28
pytestmark = pytest.mark.processes


@contextmanager
def two_pools(
    directory: Path, database: str, worker_command: Sequence[str] | None = STAND_IN
) -> Iterator[tuple[RuntimeInfo, RuntimeInfo]]:
    """Run two pools on one database, and yield the leader and the standby."""
    options: dict[str, Any] = {"database": database, "standby": True, "worker_command": worker_command}
    for name in ("first", "second"):
        (directory / name).mkdir(mode=0o700)
    with running_pool(directory / "first", "cpu:1", MEMORY_BYTES, **options) as first:
        wait_for(lambda: leads(first))
        with running_pool(directory / "second", "cpu:1", MEMORY_BYTES, **options) as second:
            yield first, second


def leads(info: RuntimeInfo) -> bool:
    with http(info) as api:
        answer = api.get("/v1/alive")
        assert answer.status_code == 200
        return bool(answer.json()["leads"]) and api.get("/v1/status").json()["ready"]


def test_the_other_takes_over_from_one_that_is_killed(tmp_path: Path, database: str) -> None:
    with two_pools(tmp_path, database) as (first, second):
        _, token = new_user(first)
        with Client(first, token) as ann:
            done = ann.submit(act(""))
            assert ann.result(done).outcome == "done"
            running = ann.submit(act("sleep 60"))
            ann.until(running, "RUNNING")
            os.kill(first.pid, signal.SIGKILL)
            killed_s = time.monotonic()
            wait_for(lambda: leads(second))
            print(f"another leads after {time.monotonic() - killed_s:.1f} s")
        with Client(second, token, ann.session) as ann, closing(rest(second, token)) as client:
            assert ann.welcome.resumed
            states = {job.job: job.state for job in client.jobs()}
            assert states == {done: "DONE", running: "WAITING"}
            assert ann.run(act(""), job=running, again=True).outcome == "done"
            assert ann.run(act(""), job=done, again=True).outcome == "done"  # its kept answer
            again = ann.run(act(""), job=done)
            assert again.error is not None
            assert "nothing runs twice" in again.error.message
            assert {job.state for job in client.jobs()} == {"DONE"}
            assert [row.stretches for row in client.usage()] == [1, 1]


def test_standby_pool_names_the_leading_pool(tmp_path: Path, database: str) -> None:
    with two_pools(tmp_path, database) as (first, second):
        assert second.standing_by
        assert httpx.get(f"{second.url}/v1/alive", trust_env=False).json() == {"alive": True, "leads": False}
        with http(second) as api:
            answers = (api.get("/v1/jobs"), api.post("/v1/users", headers={"Authorization": "none"}))
        for answer in answers:
            assert answer.status_code == 503
            assert f"{first.pool} on" in answer.json()["detail"]
            assert f"process {first.pid}" in answer.json()["detail"]
            assert "DJINN_POOL=URL,URL" in answer.json()["detail"]
        assert psutil.Process(second.pid).children() == [], "one that stands by needs no workers"


def test_second_pool_without_standby_is_refused(tmp_path: Path, database: str) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir(mode=0o700)
    with running_pool(tmp_path / "first", "cpu:1", database=database) as first:
        with pytest.raises(PoolError, match=rf"(?s)process {first.pid} uses it.*--standby"):
            with running_pool(tmp_path / "second", "cpu:1", database=database):
                pass
        assert leads(first)


def test_pool_without_its_database_connection_stops_with_its_workers(
    tmp_path: Path, postgresql: Postgresql
) -> None:
    with two_pools(tmp_path, postgresql.new_database()) as (first, second), Client(first) as client:
        running = client.submit(act("sleep 60"))
        client.until(running, "RUNNING")
        workers = psutil.Process(first.pid).children()
        postgresql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE application_name LIKE '{first.pool}%'"
        )
        until_dead(first.pid)
        assert workers
        for worker in workers:
            until_dead(worker.pid)
        log = (tmp_path / "first" / "pool.log").read_text()
        assert "The pool lost its database postgresql://" in log
        wait_for(lambda: leads(second))
        with closing(rest(second)) as rest_of_second:
            assert rest_of_second.job(running).state == "WAITING"  # for its client


def test_standby_pool_leads_after_a_restart_of_the_database(tmp_path: Path, postgresql: Postgresql) -> None:
    with two_pools(tmp_path, postgresql.new_database()) as (first, second):
        postgresql.control("restart", "-m", "fast")
        until_dead(first.pid)
        wait_for(lambda: leads(second))
        with Client(second) as client:
            assert client.run(act("")).outcome == "done"


def test_notebook_session_continues_on_the_pool_that_took_over(
    tmp_path: Path, postgresql: Postgresql
) -> None:
    """With real workers, on the same host."""
    with two_pools(tmp_path, postgresql.new_database(), None) as (first, second):
        _, token = new_user(first)
        host = torch.arange(4.0)
        session = connect(f"{second.url}, {first.url}", token=token)
        with session.capture():
            kept = host * 2
        assert session.url == first.url
        os.kill(first.pid, signal.SIGKILL)
        with session.capture() as cell:
            total = float((host * 3 + kept).sum())
        assert (total, session.url) == (30.0, second.url)
        assert "pool killed and started again" in cell.report.recovery
        assert {job.user for job in session.pool.jobs()} == {session.welcome.user}
        session.close()


def test_addresses_without_a_leading_pool_raise() -> None:
    with pytest.raises(PoolNotFound, match=r"no pool leads: http://127\.0\.0\.1:9 does not answer, "):
        leader_url("http://127.0.0.1:9,nonsense")
    assert leader_url(" http://127.0.0.1:9/ ") == "http://127.0.0.1:9"
