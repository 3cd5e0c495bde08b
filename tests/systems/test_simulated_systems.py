"""Notebooks and commands on macOS and on Windows, as far as Linux can tell: :mod:`simulated_system`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from real_pool import PoolUnderTest

pytestmark = pytest.mark.processes
SIMULATION = Path(__file__).parent / "simulation"
TIMEOUT_S = 200
CELLS = """
import sys
import torch
from djinn_lab.client.connect import connect
from djinn_lab.system import locks
assert sys.platform == "linux" and locks.sys.platform == sys.argv[1]
session = connect()
weight = torch.arange(12.0).view(3, 4).requires_grad_()
with session.capture("cell") as cell:
    loss = (weight * 2).exp().sum()
    loss.backward()
expected = torch.arange(12.0).view(3, 4).requires_grad_()
(expected * 2).exp().sum().backward()
assert cell.report.ops_run
assert torch.equal(weight.grad, expected.grad)
session.close()
print("equal")
"""


def run(system: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(SIMULATION), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DJINN_")}
    return subprocess.run(
        [sys.executable, *command],
        env=kept | {"PYTHONPATH": path, "PYTHON_SIMULATED_SYSTEM": system} | variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_client_of_another_system_computes_on_a_pool_elsewhere(system: str, tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path) as pool:
        done = run(
            *(system, "-c", CELLS, system),
            DJINN_POOL=pool.info.url,
            DJINN_TOKEN=pool.info.token,
            DJINN_RUNTIME_DIR=str(tmp_path / "of the laptop"),
        )
    assert done.stdout == "equal\n", done.stderr


def test_a_pool_on_macos_serves_one_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    here = {"DJINN_RUNTIME_DIR": str(tmp_path), "OF_THE_USER": "a password"}
    try:
        done = run("darwin", "-c", CELLS, "darwin", **here)
        assert done.stdout == "equal\n", done.stderr
        (server,) = (json.loads(file.read_text())["pid"] for file in tmp_path.rglob("pool.json"))
        workers = psutil.Process(server).children()
        assert workers
        assert all("OF_THE_USER" not in one.environ() for one in workers)
        status = run("darwin", "-m", "djinn_lab.cli", "pool", "status", "--json", **here)
        assert {one["sandbox"] for one in json.loads(status.stdout)["devices"]} == {"process-only"}
    finally:
        stopped = run("darwin", "-m", "djinn_lab.cli", "pool", "stop", **here)
    assert stopped.returncode == 0, stopped.stderr


def test_windows_says_where_a_pool_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    here = {"DJINN_RUNTIME_DIR": str(tmp_path)}
    for command in (("-c", CELLS, "win32"), ("-m", "djinn_lab.cli", "pool", "start")):
        done = run("win32", *command, **here)
        assert done.returncode == 1
        assert "no pool runs on Windows" in done.stderr
        assert "in WSL" in done.stderr


@pytest.mark.parametrize(("system", "said"), [("darwin", "trying out"), ("win32", "runs elsewhere")])
def test_doctor_says_what_a_system_is_for(system: str, said: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = run(system, "-m", "djinn_lab.cli", "doctor", "--json", DJINN_RUNTIME_DIR=str(tmp_path))
    checks = {one["name"]: one for one in json.loads(done.stdout)}
    assert said in checks["system"]["evidence"]
    assert checks["shared memory"]["status"] == "ok"
