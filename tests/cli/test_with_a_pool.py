"""The command line against a real pool process."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
import torch
from real_pool import wait_for

from djinn_lab.cli.app import main

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    place = tmp_path_factory.mktemp("pool")
    variables = {
        **os.environ,
        "DJINN_RUNTIME_DIR": str(place / "runtime"),
        "DJINN_CONFIG_DIR": str(place / "config"),
        "COLUMNS": "200",
    }
    for name in ("DJINN_POOL", "DJINN_TOKEN"):
        variables.pop(name, None)
    yield variables
    command(variables, "pool", "stop")


def command(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "djinn_lab.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def typed(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as :func:`command` does, without the second that its process takes to begin."""
    said, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        redirect_stdout(said),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main(arguments)
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code or 0, said.getvalue(), errors.getvalue())


def test_start_look_list_doctor_and_stop(environment: dict[str, str]) -> None:
    started = command(
        environment, "pool", "start", "--devices", "cpu:1", "--memory", "256MiB", "--threads", "1"
    )
    assert started.returncode == 0, started.stderr
    assert "The pool is ready at http://127.0.0.1:" in started.stdout
    assert "256.0 MiB and 1 thread each" in command(environment, "pool", "start").stdout

    status = json.loads(command(environment, "pool", "status", "--json").stdout)
    assert [device["device"] for device in status["devices"]] == ["cpu:0"]
    assert status["devices"][0]["memory_bytes"] == 2**28
    shown = command(environment, "pool", "status").stdout
    assert "256.0 MiB" in shown
    assert "Cells under way: none" in shown

    assert json.loads(typed(environment, "jobs", "--json").stdout) == []
    assert "No jobs" in typed(environment, "jobs").stdout
    assert "No job matches" in typed(environment, "jobs", "--find", "loss").stdout
    missing = typed(environment, "cancel", "0123456789abcdef")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no job" in missing.stderr.lower()
    assert "Ids are listed by djinn-lab jobs" in typed(environment, "why", "zzz").stderr
    assert "Traceback" not in missing.stderr

    checks = {check["name"]: check for check in json.loads(command(environment, "doctor", "--json").stdout)}
    assert checks["pool"]["status"] == checks["devices"]["status"] == "ok"
    assert checks["torch of the pool"]["status"] == "ok"
    assert torch.__version__ in checks["torch of the pool"]["evidence"]

    wrong = typed({**environment, "DJINN_TOKEN": "wrong"}, "pool", "status")
    assert wrong.returncode == 1
    assert "refused the token" in wrong.stderr

    elsewhere = typed({**environment, "DJINN_POOL": "https://other:8700"}, "pool", "stop")
    assert elsewhere.returncode == 1
    assert "DJINN_POOL names https://other:8700" in elsewhere.stderr

    runtime = Path(environment["DJINN_RUNTIME_DIR"])
    url = json.loads((runtime / "pool.json").read_text())["url"]
    token = json.loads(typed(environment, "users", "add", "bob", "--json").stdout)["token"]
    guest = typed({**environment, "DJINN_POOL": url, "DJINN_TOKEN": token}, "pool", "stop")
    assert guest.returncode == 1
    assert "bob (user) of this pool, and only an admin stops it" in guest.stderr

    assert (runtime / "pool.json").stat().st_mode & 0o777 == 0o600
    stopped = command(environment, "pool", "stop")
    assert (stopped.returncode, stopped.stdout) == (0, "The pool has stopped.\n")
    assert not (runtime / "pool.json").exists()
    assert command(environment, "pool", "status").returncode == 1


def test_start_beside_a_pool_names_the_options_without_effect(environment: dict[str, str]) -> None:
    same = ("--devices", "cpu:1", "--memory", "256MiB", "--threads", "1")
    command(environment, "pool", "start", *same)
    again = typed(environment, "pool", "start", *same)
    assert again.returncode == 0, again.stderr
    assert "The pool already runs" in again.stdout

    other = typed(environment, "pool", "start", "--devices", "cpu:2", "--memory", "1GiB", "--threads", "1")
    assert (other.returncode, other.stdout) == (1, "")
    assert "already runs" in other.stderr
    missed = "--devices cpu:2 (the pool has cpu:1), --memory 1.0 GiB (the pool has 256.0 MiB)"
    assert f"These options have no effect on it: {missed}." in other.stderr
    assert "stop it first" in other.stderr

    cluster = typed(environment, "pool", "start", *same, "--engine", "ray", "--address", "auto")
    assert "--engine ray (the pool has local), --address auto (the pool has none)." in cluster.stderr
    unknown = typed(environment, "jobs", "--state", "ended")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "There is no state 'ENDED'.\nStates are SUBMITTED, " in unknown.stderr

    for wrong, reason in (("--memory=10", "10 B is too little"), ("--devices=4", "'4' names no devices")):
        refused = typed(environment, "pool", "start", wrong)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert reason in refused.stderr
    command(environment, "pool", "stop")


def test_dashboard_terminated_exits_cleanly_and_frees_its_port(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "djinn_lab.cli", "dashboard", "--no-show", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
        wait_for(lambda: _listens(port))
        process.terminate()
        assert process.wait(20) == 0
        wait_for(lambda: not _listens(port))


def test_a_dashboard_ends_with_the_notebook_that_was_killed(environment: dict[str, str]) -> None:
    start = (
        "import subprocess, sys, time; "
        "subprocess.Popen([sys.executable, '-m', 'djinn_lab.cli', 'dashboard', '--no-show', '--port', '0', "
        "'--with-parent']); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", start], env=environment, stdout=subprocess.PIPE, text=True
    ) as notebook:
        assert notebook.stdout is not None
        port = int(notebook.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
        wait_for(lambda: _listens(port))
        notebook.kill()
        wait_for(lambda: not _listens(port))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_operators_reserve_devices_add_people_and_change_the_policy(environment: dict[str, str]) -> None:
    started = command(environment, "pool", "start", "--devices", "cpu:1", "--memory", "256MiB")
    assert started.returncode == 0, started.stderr

    assert "No reservations" in typed(environment, "reservations").stdout
    wrong = typed(
        environment, "reservations", "make", "course", "--device", "cpu:7", "--account", "a", "--until", "+1h"
    )
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "There is no device 'cpu:7'" in wrong.stderr
    asked = ("reservations", "make", "course", "--device", "cpu:0", "--account", "teaching")
    over = typed(environment, *asked, "--from", "2020-01-01", "--until", "+1h")
    assert "in the past" in over.stderr
    made = typed(environment, *asked, "--until", "+2h")
    assert "(devices: cpu:0)" in typed(environment, "cordon", "cpu:7").stderr
    cordoned = typed(environment, "cordon", "cpu:0").stdout
    drained = typed(environment, "cordon", "cpu:0", "--drain").stdout
    assert "end there first (--drain preempts them): 0." in cordoned
    assert "preempted after their current op, to resume on another device: 0." in drained
    assert "Sessions bound to it, which move with their next cell or part of a cell: 0." in drained
    assert "cpu:0 is cordoned" in typed(environment, "queue").stdout
    assert "serves again" in typed(environment, "uncordon", "cpu:0").stdout
    assert "cordoned" not in typed(environment, "queue").stdout
    assert "Reservation course: cpu:0 for teaching" in made.stdout
    assert "No cell has run as teaching yet" in made.stdout
    (kept,) = json.loads(typed(environment, "reservations", "--json").stdout)
    assert kept["ends_s"] - kept["begins_s"] == pytest.approx(7200, abs=60)
    assert "course" in typed(environment, "queue").stdout
    assert "is over" in typed(environment, "reservations", "end", "course").stdout
    assert "There is no reservation" in typed(environment, "reservations", "end", "course").stderr

    added = json.loads(typed(environment, "users", "add", "ann", "--account", "vision", "--json").stdout)
    assert "users list --json" in typed(environment, "users", "--json", "list").stderr
    assert "There is a user 'ann'" in typed(environment, "users", "add", "ann").stderr
    hers = {**environment, "DJINN_POOL": pool_url(environment), "DJINN_TOKEN": added["token"]}
    assert "vision/ann" in typed(environment, "users").stdout
    assert typed(hers, "queue").returncode == 0
    assert typed(hers, "policy", "easy").returncode == 1
    assert "decides by the policy default" in typed(hers, "policy").stdout
    assert "decides by the policy easy" in typed(environment, "policy", "easy").stdout
    assert typed(hers, "policy", "default").returncode == 1
    typed(hers, "users", "token", "add", "board", "--role", "viewer")
    changed = typed(environment, "users", "role", "ann", "admin").stdout
    assert changed == "ann has the role admin now. Tokens made for a lower role keep it: board (viewer).\n"
    assert typed(hers, "policy", "default").returncode == 0
    assert "'king' is not a role" in typed(environment, "users", "role", "ann", "king").stderr
    assert typed(environment, "users", "remove", "ann").returncode == 0
    assert "refused the token" in typed(hers, "queue").stderr
    command(environment, "pool", "stop")


def pool_url(environment: dict[str, str]) -> str:
    found = json.loads((Path(environment["DJINN_RUNTIME_DIR"]) / "pool.json").read_text())
    return str(found["url"])
