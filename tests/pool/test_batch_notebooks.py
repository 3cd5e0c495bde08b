"""Batch notebooks on a real pool with real kernels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import nbformat
import pytest
import torch
from device_kind import KIND
from notebook_kit import document, new_notebook
from real_pool import PoolUnderTest, wait_for

from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import CancelFailed, OptionError, PoolError, Refused
from djinn_lab.jobs.fairness import Limits
from djinn_lab.protocol.rest.notebooks import NewNotebook, NotebookView
from djinn_lab.system.liveness import process_is_alive

pytestmark = pytest.mark.processes

OVER_WITHIN_S = 120.0


def submit(pool: PoolUnderTest, name: str, *cells: str, **asked: Any) -> str:
    found, _ = pool.rest.submit_notebook(new_notebook(name, *cells, **asked))
    return str(found.job)


def until(pool: PoolUnderTest, job: str, *states: str) -> NotebookView:
    deadline_s = time.monotonic() + OVER_WITHIN_S
    while True:
        found = pool.rest.notebook(job)
        if found.state in states:
            return found
        assert time.monotonic() < deadline_s, f"timed out waiting for {states}: {found.reason}"
        time.sleep(0.1)


def until_over(pool: PoolUnderTest, job: str) -> NotebookView:
    return until(pool, job, "DONE", "FAILED", "CANCELLED")


def executed(pool: PoolUnderTest, job: str) -> Any:
    return nbformat.reads(pool.rest.notebook_result(job).decode(), as_version=4)


def text_of(cell: Any) -> str:
    return "".join(out.get("text", "") + out.get("data", {}).get("text/plain", "") for out in cell.outputs)


TRAINING = """
torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = (model(torch.ones(2, 4)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ENVIRONMENT = """
import os
from djinn_lab.client.rest import PoolClient
status = PoolClient.find().status()
print(status.user, status.role)
print(os.environ["DJINN_TOKEN"])
print([name for name in os.environ if name.startswith(("DJINN_", "PG"))])
print(os.getcwd())
open("written", "w").close()
print(oct(os.stat("written").st_mode & 0o777))
"""
FAILS_ONCE = """
import pathlib
counter = pathlib.Path("counter.txt")
counter.write_text(counter.read_text() + "x" if counter.exists() else "x")
if counter.read_text() == "x":
    raise RuntimeError("not yet")
print("attempt", len(counter.read_text()))
"""
ENDLESS = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
left = int(subprocess.check_output(["sh", "-c", "setsid sleep 600 >/dev/null & echo $!"]))
print(os.getpid(), child.pid, daemon.pid, left, flush=True)
while True:
    time.sleep(0.05)
"""
HANGS_AT_FIRST = ENDLESS.replace("True", "first")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("batch"), f"{KIND}:1", notebook_slots=3) as running:
        yield running


@pytest.fixture(scope="module")
def jobs(pool: PoolUnderTest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The notebooks of all tests, submitted at once."""
    folder = str(tmp_path_factory.mktemp("work"))
    made = {
        "trains": submit(
            pool,
            "trains",
            "import torch",
            TRAINING,
            "loss",
            "print(model.weight)",
            priority="HIGH",
            deadline_s=600,
        ),
        "fails": submit(
            pool,
            "fails",
            "x = 1",
            "x",
            "raise ValueError('bad \\0 \\x1b[31m\\nluck')",
            "print('never')",
        ),
        "endless": submit(pool, "endless", "1 + 1", ENDLESS),
        "again": submit(
            pool, "again", FAILS_ONCE, folder=folder, restart={"policy": "on-failure", "backoff_s": 0.2}
        ),
        "looks": submit(pool, "looks", ENVIRONMENT, folder=folder),
    }
    made["follows"] = submit(pool, "follows", "6 * 7", after=[made["again"][:8]])
    made["never follows"] = submit(pool, "never follows", "1", after=[made["fails"]])
    return made


def test_an_executed_notebook_has_what_plain_torch_gives(pool: PoolUnderTest, jobs: dict[str, str]) -> None:
    found = until_over(pool, jobs["trains"])
    assert (found.state, found.cell, found.cells, found.attempts) == ("DONE", 4, 4, 1)
    namespace: dict[str, Any] = {"torch": torch}
    exec(TRAINING, namespace)
    cells = executed(pool, jobs["trains"]).cells
    assert [text_of(cell) for cell in cells] == [
        "",
        "",
        repr(namespace["loss"]),
        f"{namespace['model'].weight}\n",
    ]
    of_the_pool = {(job.state, job.priority) for job in pool.rest.jobs()}
    assert of_the_pool == {("DONE", "HIGH")}, "its cells did not run on the pool, or not with its priority"


def test_a_cell_that_raises_ends_the_notebook_and_is_named(pool: PoolUnderTest, jobs: dict[str, str]) -> None:
    found = until_over(pool, jobs["fails"])
    assert found.state == "FAILED"
    assert found.reason == "Failed: ValueError in cell 3 of 4: bad ? ?[31m."
    cells = executed(pool, jobs["fails"]).cells
    assert text_of(cells[1]) == "1"
    assert cells[2].outputs[0].ename == "ValueError"
    assert cells[3].outputs == []


def test_a_notebook_that_fails_once_is_run_again(pool: PoolUnderTest, jobs: dict[str, str]) -> None:
    found = until_over(pool, jobs["again"])
    assert (found.state, found.attempts, found.attempts_max) == ("DONE", 2, 5)
    assert text_of(executed(pool, jobs["again"]).cells[0]) == "attempt 2\n"


def test_dependent_notebook_waits_for_success_and_is_cancelled_on_failure(
    pool: PoolUnderTest, jobs: dict[str, str]
) -> None:
    assert until_over(pool, jobs["follows"]).state == "DONE"
    first, second = pool.rest.notebook(jobs["again"]), pool.rest.notebook(jobs["follows"])
    assert second.started_at >= first.finished_at
    ended = until_over(pool, jobs["never follows"])
    assert ended.state == "CANCELLED"
    assert "which it depends on, is FAILED" in ended.reason


def test_a_kernel_is_its_users_and_knows_nothing_more(pool: PoolUnderTest, jobs: dict[str, str]) -> None:
    assert until_over(pool, jobs["looks"]).state == "DONE"
    user, token, names, folder, mode = text_of(executed(pool, jobs["looks"]).cells[0]).splitlines()
    assert user == f"{pool.rest.status().user} user"
    assert token != pool.info.token
    assert not {"DJINN_DATABASE", "DJINN_RUNTIME_DIR", "PGPASSWORD"} & set(names.strip("[]'").split("', '"))
    assert folder != os.getcwd()
    os.umask(umask := os.umask(0))
    assert mode == oct(0o666 & ~umask), "its files are not as those that the pool's owner writes"
    refused = httpx.get(f"{pool.info.url}/v1/status", headers={"Authorization": f"Bearer {token}"})
    assert refused.status_code == 401, "its token outlives it"


def test_cancelling_stops_the_kernel_and_all_that_it_started(
    pool: PoolUnderTest, jobs: dict[str, str]
) -> None:
    def processes() -> list[int]:
        try:
            return [int(word) for word in text_of(executed(pool, jobs["endless"]).cells[1]).split()]
        except PoolError:
            return []

    kernel, *started = wait_for(processes)
    assert all(map(process_is_alive, (kernel, *started)))
    assert "cell 2 of 2" in pool.rest.why(jobs["endless"]).sentence
    assert pool.rest.cancel(jobs["endless"]).state == "CANCELLED"
    wait_for(lambda: not any(map(process_is_alive, (kernel, *started))))
    assert text_of(executed(pool, jobs["endless"]).cells[0]) == "2"
    with pytest.raises(CancelFailed, match="already CANCELLED"):
        pool.rest.cancel(jobs["endless"])


def test_ended_notebooks_leave_no_files_and_no_sessions(pool: PoolUnderTest, jobs: dict[str, str]) -> None:
    for job in jobs.values():
        until_over(pool, job)
    wait_for(lambda: not list((pool.directory / "notebooks").glob("*")))
    wait_for(lambda: pool.rest.sessions() == [])


def test_the_same_key_is_the_same_job_and_another_content_is_refused(
    pool: PoolUnderTest, jobs: dict[str, str]
) -> None:
    with pytest.raises(PoolError, match="There is no notebook"):
        pool.rest.submit_notebook(new_notebook("once", "1", after=[jobs["endless"][:2] + "0000"]))
    first, new = pool.rest.submit_notebook(new_notebook("once", "1"))
    again, new_again = pool.rest.submit_notebook(new_notebook("once", "1"))  # other ids of cells
    assert (new, new_again, again.job) == (True, False, first.job)
    with pytest.raises(PoolError, match=f"belongs to {first.job}"):
        pool.rest.submit_notebook(new_notebook("another", "1", key="once"))
    assert len([one for one in pool.rest.notebooks(limit=1000) if one.name == "once"]) == 1


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"notebook": document()}, "has no code cells"),
        ({"notebook": {"nbformat": 3}}, "notebook format 3"),
        ({"notebook": {"nbformat": 4, "cells": 5}}, "It is not a notebook"),
        ({"notebook": {**document("1"), "metadata": {"kernelspec": {"language": "R"}}}}, "the language R"),
        ({"folder": "/nowhere"}, "There is no folder /nowhere"),
        ({"priority": "URGENT"}, "none of CRITICAL"),
        ({"timeout_s": -1}, "a timeout of"),
    ],
)
def test_invalid_notebook_is_refused_with_the_reason(
    pool: PoolUnderTest, wrong: dict[str, Any], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        pool.rest.submit_notebook(new_notebook("wrong", "1", **wrong))
    assert all(one.name != "wrong" for one in pool.rest.notebooks(limit=1000))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"name": ""}, "A name has 1 to 200"),
        ({"key": "k" * 201}, "A key has 1 to 200"),
        ({"name": "two\nlines"}, "printable characters"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_submission_of_another_client_is_refused_with_the_reason(
    pool: PoolUnderTest, wrong: dict[str, Any], reason: str
) -> None:
    asked = {"notebook": document("1"), "name": "wrong", "key": "wrong", **wrong}
    token = {"Authorization": f"Bearer {pool.info.token}"}
    answer = httpx.post(f"{pool.info.url}/v1/notebooks", json=asked, headers=token, trust_env=False)
    assert answer.status_code == 422
    assert reason in answer.json()["detail"]


@pytest.mark.parametrize(("name", "key"), [("", "key"), ("name", ""), ("two\nlines", "key")])
def test_a_name_or_key_that_cannot_be_is_refused_where_it_is_given(name: str, key: str) -> None:
    with pytest.raises(ValueError, match="printable characters"):
        NewNotebook(msgspec.Raw(b"{}"), name, key)


def test_an_account_with_a_limit_gets_no_better_priority(pool: PoolUnderTest) -> None:
    account = pool.rest.status().user
    pool.rest.set_targets(account, limits=Limits(rank_min=1))
    try:
        with pytest.raises(OptionError, match=f"CRITICAL is above the limit of account {account}, HIGH"):
            submit(pool, "critical", "1", priority="CRITICAL")
    finally:
        pool.rest.set_targets(account, limits=Limits())


def test_a_notebook_that_is_too_large_is_refused(pool: PoolUnderTest) -> None:
    with pytest.raises(Refused, match=r"at most 64\.0 MiB"):
        submit(pool, "large", f"'{'x' * 2**26}'")


def test_only_the_owner_submits_and_sees_results(pool: PoolUnderTest, jobs: dict[str, str]) -> None:
    other = PoolClient(pool.info.url, pool.rest.create_user("ann").token)
    try:
        with pytest.raises(Refused, match="--notebooks-for users"):
            other.submit_notebook(new_notebook("ann's", "1"))
        assert other.notebook(jobs["fails"]).name == "fails"
        for attempt in (other.notebook_result, other.cancel):
            with pytest.raises(Refused, match="belongs to another user"):
                attempt(jobs["fails"])
    finally:
        other.close()


def test_accepted_notebooks_survive_a_killed_server_and_none_runs_twice(tmp_path: Path) -> None:
    def cells(name: str) -> tuple[str, ...]:
        """Cells that note each run; the last cell never ends in the first run."""
        note = f"open('runs.txt', 'a').write('{name}\\n')"
        return note, f"first = open('runs.txt').read().split().count('{name}') == 1", HANGS_AT_FIRST

    def processes(job: str) -> list[int]:
        try:
            return [int(word) for word in text_of(executed(pool, job).cells[2]).split()]
        except PoolError:
            return []

    with PoolUnderTest(tmp_path, f"{KIND}:1", notebook_slots=2, notebooks_for="users") as pool:
        ann = PoolClient(pool.info.url, pool.rest.create_user("ann").token)
        restart = {"policy": "on-failure", "backoff_s": 0.2}
        twice = new_notebook("twice", *cells("twice"), key="1", folder=str(tmp_path), restart=restart)
        again, _ = ann.submit_notebook(twice)
        ann.close()
        once = submit(pool, "once", *cells("once"), folder=str(tmp_path))
        waits = submit(pool, "waits", "open('runs.txt', 'a').write('waits\\n')", folder=str(tmp_path))
        printed = wait_for(lambda: processes(once))
        alive = [*printed, *wait_for(lambda: processes(again.job))]
        assert pool.rest.notebook(waits).reason.startswith("1st of 1 waiting notebook; both slots are taken")
        os.kill(pool.info.pid, signal.SIGKILL)
        wait_for(lambda: not any(process_is_alive(one) for one in alive))
        pool.rest.close()
        pool.start()
        ended = until_over(pool, once)
        assert ended.state == "FAILED"
        assert "not run again because its restart policy is never" in ended.reason
        assert processes(once) == printed, "what it had printed is lost"
        assert until_over(pool, waits).state == "DONE"
        ended = until_over(pool, again.job)
        assert (ended.state, ended.attempts) == ("DONE", 2)
        assert sorted((tmp_path / "runs.txt").read_text().split()) == ["once", "twice", "twice", "waits"]


def test_the_command_runs_a_notebook_and_says_how_it_went(pool: PoolUnderTest, tmp_path: Path) -> None:
    path, done = tmp_path / "hello.ipynb", tmp_path / "done.ipynb"
    nbformat.write(nbformat.from_dict(document("print('hello')", "1 / 0")), path)  # type: ignore[no-untyped-call]
    environment = {**pool.environment, "COLUMNS": "200"}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "djinn_lab.cli", *arguments]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=90, check=False)

    ran = command("submit", str(path), "-o", str(done))
    assert ran.returncode == 1
    assert "Failed: ZeroDivisionError in cell 2 of 2: division by zero." in ran.stdout
    assert text_of(nbformat.read(done, as_version=4).cells[0]) == "hello\n"  # type: ignore[no-untyped-call]
    job = next(one for one in pool.rest.notebooks() if one.name == "hello").job
    assert "ZeroDivisionError" in command("notebooks").stdout
    assert "ZeroDivisionError" in command("why", job[:8]).stdout
    assert "already FAILED" in command("cancel", job).stderr
