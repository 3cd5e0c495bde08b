"""Batch notebooks that say where their cells run, on a real pool with real kernels."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from device_kind import KIND
from notebook_kit import document, new_notebook
from pool_kit import Client, act
from real_pool import PoolUnderTest, wait_for

from djinn_lab.errors import OptionError, PoolError
from djinn_lab.system.liveness import process_is_alive

pytestmark = pytest.mark.processes

OVER_WITHIN_S = 120.0
CELLS = (
    "import torch\nx = torch.ones(3) + 1  # at first",
    "%%local\nprint(float(x.sum()))",
    f"%%djinn --target {KIND}:0\nfloat((x + 1).sum())",
    "%%djinn --target any\nfloat((x + 2).sum())",
)


def devices_used(pool: PoolUnderTest, marked: str) -> list[str]:
    """Return the devices of the jobs of the session that ran ``marked``, in order."""
    cells = [pool.rest.job(one.job) for one in pool.rest.jobs(limit=1000, fetches=True)]
    (session,) = {one.session for one in cells if marked in one.code}
    return [one.device for one in cells[::-1] if one.session == session]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """One of two devices has a label and a taint."""
    with PoolUnderTest(tmp_path_factory.mktemp("targets"), f"{KIND}:2") as running:
        running.rest.describe_device(f"{KIND}:1", ["gpu=h200"], ["vision"])
        yield running


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"target": "cuda:7"}, f"here is no device 'cuda:7' (devices: {KIND}:0 (kind={KIND}"),
        (
            {"target": "gpu=big", "tolerates": ["vision"]},
            f"o device is gpu=big (devices: {KIND}:0 (kind={KIND}",
        ),
        (
            {"target": "gpu=h200"},
            f"has a taint that it does not tolerate ({KIND}:1 (gpu=h200, kind={KIND}",
        ),
        ({"target": "gpu=h200", "tolerates": ["night"]}, "cells with --tolerate and its name start there"),
        ({"target": "gpu="}, "t asks for 'gpu=', which is no label; write key=value"),
        ({"tolerates": ["two words"]}, "t asks for 'two words', which is no taint"),
    ],
)
def test_what_suits_no_device_is_refused_at_once_as_a_cell_is(
    pool: PoolUnderTest, asked: dict[str, Any], reason: str
) -> None:
    with pytest.raises(OptionError) as refused:
        pool.rest.submit_notebook(new_notebook("wrong", "1", **asked))
    assert reason in str(refused.value)
    assert all(one.name != "wrong" for one in pool.rest.notebooks())
    if "target" in asked and "tolerates" not in asked:
        with Client(pool.info) as client:
            error = client.run(act(""), target=asked["target"]).error
        assert error is not None
        assert reason in error.message


def test_a_key_belongs_to_one_target(pool: PoolUnderTest, tmp_path: Path) -> None:
    path = tmp_path / "once.ipynb"
    nbformat.write(nbformat.from_dict(document("1")), path)  # type: ignore[no-untyped-call]

    def command(*options: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "djinn_lab.cli", "submit", str(path), "--key", "once", *options]
        environment = {**pool.environment, "COLUMNS": "200"}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=90, check=False)

    asked = ("--target", "gpu=h200", "--tolerate", "vision")
    first, again = command(*asked), command(*asked)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert "was submitted before with this key" in again.stderr
    other = command("-t", f"{KIND}:0")
    assert other.returncode == 1
    assert "which was submitted with another content or other options" in " ".join(other.stderr.split())
    (one,) = [one for one in pool.rest.notebooks() if one.name == "once"]
    assert first.stdout == again.stdout == f"{one.job}\n"  # what a script reads
    assert (one.target, one.tolerates) == ("gpu=h200", ("vision",))


def test_its_cells_run_there_unless_they_say_otherwise_also_after_a_kill(pool: PoolUnderTest) -> None:
    asked = {"target": "gpu=h200", "tolerates": ["vision"], "after": ["data:go"]}
    job = pool.rest.submit_notebook(new_notebook("there", *CELLS, **asked))[0].job
    dead = pool.info.pid
    pool.kill()
    wait_for(lambda: not process_is_alive(dead))
    pool.rest.close()
    pool.start()
    with pytest.raises(PoolError, match="another content or other options"):
        pool.rest.submit_notebook(new_notebook("there", *CELLS, **asked, timeout_s=60))
    again, new = pool.rest.submit_notebook(new_notebook("there", *CELLS, **asked))
    assert (again.job, again.target, new) == (job, "gpu=h200", False)
    pool.rest.publish("go")
    deadline_s = time.monotonic() + OVER_WITHIN_S
    while (found := pool.rest.notebook(job)).state in ("QUEUED", "RUNNING"):
        assert time.monotonic() < deadline_s, found.reason
        time.sleep(0.1)
    assert found.state == "DONE", found.reason
    first, fetched, elsewhere, anywhere = devices_used(pool, "# at first")
    assert (first, fetched) == (f"{KIND}:1", f"{KIND}:1"), "what is fetched outside cells may stay there, too"
    assert (elsewhere, anywhere) == (f"{KIND}:0", f"{KIND}:0")
