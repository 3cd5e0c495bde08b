"""``make bench-gpu`` measures on any accelerator, at a size of seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from standin_autoload import VARIABLE

pytestmark = pytest.mark.processes
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TIMEOUT_S = 280


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {"memory_bytes": 2**31, "context_bytes": 2**24, "card": str(tmp_path / "card")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DJINN_")}
    environment = kept | {VARIABLE: json.dumps(settings), "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", "--small", "--output", str(tmp_path)]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_experiments_write_their_figures_beside_what_the_machine_can_do(tmp_path: Path) -> None:
    done = run(tmp_path, "--device", "standin", "--part", "3", "turns")
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = tmp_path.glob("gpu-part-3-*.json")
    figures = json.loads(file.read_text())["figures"]
    assert {figure["benchmark"] for figure in figures} == {"ceilings", "gpu-turns"}
    assert not [figure for figure in figures if figure["skipped"]]
    assert [figure["facts"]["wrong"] for figure in figures if figure["benchmark"] == "gpu-turns"] == [0]


def test_tokens_of_recorded_steps_are_those_of_the_ops(tmp_path: Path) -> None:
    done = run(tmp_path, "--device", "standin", "--part", "2", "recorded")
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = tmp_path.glob("gpu-part-2-*.json")
    figures = [one for one in json.loads(file.read_text())["figures"] if one["benchmark"] == "gpu-recorded"]
    assert [figure["facts"]["equal_tokens"] for figure in figures] == [1.0, 1.0]
    assert all(figure["facts"]["report"] for figure in figures)


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "--device", "cuda", "ops")
    assert done.returncode == 1
    assert "There is no cuda device here: torch finds standin" in done.stdout
    assert not [*tmp_path.glob("gpu-part-*.json")]
