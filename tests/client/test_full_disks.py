"""The disk of the pool's database is full for a while: cells wait, and nothing is lost."""

from __future__ import annotations

import functools
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from real_pool import PoolUnderTest, wait_for

from djinn_lab.client.session import Session
from djinn_lab.errors import Refused

pytestmark = pytest.mark.processes
CAPACITY = "64m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little space."""
    place = tmp_path / "small"
    place.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={CAPACITY}", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take all space that is left."""
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file:
        for nbytes in (2**20, 2**12):
            try:
                while True:
                    file.write(bytes(nbytes))
            except OSError:
                continue
    return filling


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


def test_cells_wait_while_the_disk_is_full_and_end_well_when_it_is_not(
    tmp_path: Path, small_disk: Path
) -> None:
    database = f"sqlite:///{small_disk / 'pool.sqlite3'}"
    with PoolUnderTest(tmp_path, devices="cpu:1", database=database) as pool:
        cells = 0
        with pool.session() as session:
            for _ in range(2):
                found: list[float] = []
                reasons: list[str] = []
                stop = threading.Event()
                working = threading.Thread(target=compute, args=(session, stop, found, reasons))
                filling = fill(small_disk)
                working.start()
                wait_for(lambda: not writes(pool))
                wait_for(functools.partial(said, "the pool's database has no space", reasons))
                with pytest.raises(Refused, match="No session can be opened: the pool's"), pool.session():
                    pass
                filling.unlink()
                stop.set()
                working.join()
                assert found == [3.0 * (number + 1) for number in range(len(found))]
                cells += len(found)
                assert writes(pool)
        jobs = pool.rest.jobs(limit=1000)
        assert [job.state for job in jobs] == ["DONE"] * len(jobs)
        assert len(jobs) == min(cells, 1000)
