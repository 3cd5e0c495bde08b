"""Clients and pools whose protocols are three versions apart: pools of copies of this package."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest, wait_for
from typer.testing import CliRunner

import djinn_lab
from djinn_lab.cli.app import build_app
from djinn_lab.client.connect import connect
from djinn_lab.errors import VersionMismatch
from djinn_lab.protocol.messages import POOL_VERSIONS, PROTOCOL_VERSION
from djinn_lab.protocol.version import VERSION

pytestmark = pytest.mark.processes
HERE = Path(djinn_lab.__file__).parent


def copy_of_package(folder: Path, version: str, protocols: Sequence[int]) -> Path:
    """Make the package of another version below ``folder``, whose pools speak ``protocols``."""
    package = folder / "djinn_lab"
    shutil.copytree(HERE, package, ignore=shutil.ignore_patterns("__pycache__"))
    messages = package / "protocol" / "messages.py"
    text = re.sub(r"(?m)^PROTOCOL_VERSION = .*", f"PROTOCOL_VERSION = {protocols[-1]}", messages.read_text())
    for name in ("POOL_VERSIONS", "CLIENT_VERSIONS"):
        text = re.sub(rf"(?m)^{name} = .*", f"{name} = {tuple(protocols)}", text)
    messages.write_text(text)
    about = package / "protocol" / "version.py"
    about.write_text(about.read_text().replace(f'"{VERSION}"', f'"{version}"'))
    return folder


@contextmanager
def pools_of(folder: Path) -> Iterator[None]:
    """Start pools of the package in ``folder`` inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.chdir(folder)
        yield


def doctors_words() -> tuple[str, str]:
    """Return what the doctor says of the pool: the status, and evidence with advice."""
    done = CliRunner().invoke(build_app(), ["doctor", "--json"])
    check = next(one for one in json.loads(done.stdout) if one["name"] == "pool")
    return check["status"], f"{check['evidence']} {check['fix']}"


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    protocols = range(PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 4)
    return copy_of_package(tmp_path / "newer", "0.9.0", protocols)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    directory = tmp_path / "pool"
    directory.mkdir()
    with PoolUnderTest(directory, devices=f"{KIND}:1") as running:
        yield running


def come_back(pool: PoolUnderTest, package: Path | None = None) -> None:
    """Kill the pool, and start one of another version, or of this one."""
    pool.kill()
    with pools_of(package) if package is not None else nullcontext():
        pool.start()


def test_a_session_whose_pool_comes_back_as_a_newer_version_waits_for_one_that_it_understands(
    pool: PoolUnderTest, newer: Path
) -> None:
    with closing(connect(name="a notebook")) as session:
        with session.capture():
            kept = torch.full((3,), 2.0).cuda()
        own = session.welcome.session
        come_back(pool, newer)
        for _ in range(2):
            with pytest.raises(VersionMismatch) as refused, session.capture():
                (kept + 1).tolist()
            said = refused.value.message
            assert f"The client (djinn-lab {VERSION}) speaks protocol {PROTOCOL_VERSION}" in said
            assert "the pool (djinn-lab 0.9.0) speaks protocol" in said
            assert "The client is the older one: install djinn-lab 0.9.0" in said
        status, words = doctors_words()
        assert status == "fail"
        assert "version 0.9.0" in words
        assert f"here version {VERSION}" in words
        assert "The client is the older one: install djinn-lab 0.9.0" in words
        come_back(pool)
        with session.capture():
            assert (kept + 1).tolist() == [3.0, 3.0, 3.0]
        assert session.welcome.session == own


def test_a_cell_that_runs_while_its_pool_comes_back_as_a_newer_version_says_so(
    pool: PoolUnderTest, newer: Path
) -> None:
    def replace() -> None:
        wait_for(lambda: any(job.ops_done > 20 for job in pool.rest.jobs(limit=10)))
        come_back(pool, newer)

    x = torch.randn(200, 200, generator=torch.Generator().manual_seed(3))
    with closing(connect(name="a notebook")) as session:
        with session.capture():
            kept = torch.full((3,), 2.0).cuda()
        replacing = threading.Thread(target=replace)
        replacing.start()
        with pytest.raises(VersionMismatch, match=r"djinn-lab 0\.9\.0"), session.capture():
            for _ in range(20):
                for _ in range(300):
                    x = (x @ x).clamp_(-1, 1)
                x.sum().item()
        replacing.join()
        come_back(pool)
        with session.capture():
            assert (kept + 1).tolist() == [3.0, 3.0, 3.0]


def test_cells_run_on_a_pool_that_is_three_protocols_older(tmp_path: Path) -> None:
    protocols = [version for version in POOL_VERSIONS if version <= PROTOCOL_VERSION - 3]
    older = copy_of_package(tmp_path / "older", "0.0.1", protocols)
    directory = tmp_path / "pool"
    directory.mkdir()
    with pools_of(older), PoolUnderTest(directory, devices=f"{KIND}:1") as pool, pool.session() as session:
        with session.capture():
            assert (torch.ones(3).cuda() + 1).tolist() == [2.0, 2.0, 2.0]
        assert session.welcome.protocol_version == PROTOCOL_VERSION - 3
        status, words = doctors_words()
        assert status == "warn"
        assert f"cells run, by protocol {PROTOCOL_VERSION - 3}" in words
        assert "The pool is the older one: update djinn-lab there" in words
