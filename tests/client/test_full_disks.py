"""The disk of the pool's database is full for a while: cells wait, and nothing is lost."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest, wait_for
from typer.testing import CliRunner

from djinn_lab.cli.app import build_app
from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session
from djinn_lab.errors import PoolError, PoolWaits, Refused
from djinn_lab.protocol.runtime_file import read_runtime, start_waits_for

pytestmark = pytest.mark.processes
CAPACITY = "64m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little space."""
    place = tmp_path / "small"
    place.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={CAPACITY},nr_inodes=500", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> list[Path]:
    """Take all space that is left."""
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file:
        for nbytes in (2**20, 2**12):
            try:
                while True:
                    file.write(bytes(nbytes))
            except OSError:
                continue
    return [filling]


def fill_with_files(disk: Path) -> list[Path]:
    """Take all file entries that are left."""
    made: list[Path] = []
    with contextlib.suppress(OSError):
        while True:
            path = disk / f"filling-{len(made)}"
            path.touch()
            made.append(path)
    return made


def add_one(session: Session, value: torch.Tensor, reasons: list[str]) -> None:
    with session.capture("after"):
        session.executor.on_update = lambda update: reasons.append(update.reason)
        value += 1


def writes(pool: PoolUnderTest) -> bool:
    return bool(httpx.get(f"{pool.info.url}/v1/alive", trust_env=False).json()["writes"])


def said(sentence: str, reasons: list[str]) -> bool:
    return any(sentence in reason for reason in reasons)


def compute(session: Session, stop: threading.Event, found: list[float], reasons: list[str]) -> None:
    """Run cells, of which the first ones may fit in the space that the database has in its own files."""
    value = torch.zeros(3)
    while not stop.is_set():
        number = len(found)
        with session.capture(f"cell {number}"):
            session.executor.on_update = lambda update: reasons.append(update.reason)
            value = value.cuda() + 1
            found.append(float(value.sum().cpu()))


def test_pool_killed_on_a_full_disk_says_so_and_comes_back_with_its_sessions(small_disk: Path) -> None:
    options = {"memory_bytes": 300 * 2**20, "host_bytes": 16 * 2**20}  # which may be on that disk
    with PoolUnderTest(small_disk, devices=f"{KIND}:1", restart=True, **options) as pool:
        session = connect(name="patient")
        with session.capture("before"):
            value = torch.arange(4.0) * 2
        emptied = [*fill(small_disk), *fill_with_files(small_disk)]
        pool.kill()
        wait_for(start_waits_for)
        shown = CliRunner().invoke(build_app(), ["pool", "status"])
        assert isinstance(shown.exception, PoolWaits)
        assert "cannot be written: No space left" in shown.exception.message
        reasons: list[str] = []
        working = threading.Thread(target=add_one, args=(session, value, reasons))
        working.start()
        wait_for(functools.partial(said, "No space left on device. The cell waits for that", reasons))
        for path in emptied:
            path.unlink()
        working.join()
        assert value.tolist() == [1.0, 3.0, 5.0, 7.0]
        pool.info = wait_for(read_runtime)
        assert pool.info.settings["memory_bytes"] == 300 * 2**20
        assert not start_waits_for()
        session.close()


def test_cells_wait_while_the_disk_is_full_and_end_well_when_it_is_not(
    tmp_path: Path, small_disk: Path
) -> None:
    database = f"sqlite:///{small_disk / 'pool.sqlite3'}"
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1", database=database) as pool:
        cells = 0
        with pool.session() as session:
            for _ in range(2):
                found: list[float] = []
                reasons: list[str] = []
                stop = threading.Event()
                working = threading.Thread(target=compute, args=(session, stop, found, reasons))
                filling = fill(small_disk)[0]
                working.start()
                wait_for(lambda: not writes(pool))
                wait_for(functools.partial(said, "the pool's database has no space", reasons))
                with pytest.raises(Refused, match="No session can be opened: the pool's"), pool.session():
                    pass
                with pytest.raises(PoolError, match="runs, but its database has no space"):
                    pool.rest.check_writes()
                filling.unlink()
                stop.set()
                working.join()
                assert found == [3.0 * (number + 1) for number in range(len(found))]
                cells += len(found)
                assert writes(pool)
        jobs = pool.rest.jobs(limit=1000)
        assert [job.state for job in jobs] == ["DONE"] * len(jobs)
        assert len(jobs) == min(cells, 1000)
