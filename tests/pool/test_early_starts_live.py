"""Cells that start while their session is still being restored, on a live pool with a slow link."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from device_kind import KIND
from parked import arenas, flip_a_byte
from real_pool import PoolUnderTest, kill_worker, wait_for

from djinn_lab.client.session import Session
from djinn_lab.errors import ValueLost
from djinn_lab.protocol.rest.sessions import MemorySession

pytestmark = pytest.mark.processes

MIB = 2**20
DEVICE_BYTES = 64 * MIB
PARTS = 10
PART_BYTES = 4 * MIB
"""A session has forty MiB, so that one of two fits the device."""
LINK = 32 * MIB
"""More than a second for a session."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    options = {"host_bytes": 4 * DEVICE_BYTES, "link_bytes_per_s": LINK}
    with PoolUnderTest(tmp_path_factory.mktemp("early"), f"{KIND}:1", DEVICE_BYTES, **options) as pool:
        yield pool


def part(number: int) -> torch.Tensor:
    return torch.arange(PART_BYTES // 4, dtype=torch.int32).mul_(2 * number + 1)


def hold(session: Session, first: int) -> list[torch.Tensor]:
    with session.capture():
        return [part(first + number) for number in range(PARTS)]


def row_of(pool: PoolUnderTest, session: Session) -> MemorySession:
    own = session.welcome.session
    return next(row for row in pool.rest.memory().sessions if row.session == own)


def runs_while_restored(pool: PoolUnderTest, session: Session) -> bool:
    own = session.welcome.session
    moving = row_of(pool, session).moving == "restore"
    running = [job for job in pool.rest.jobs(limit=20) if job.session == own and job.state == "RUNNING"]
    return moving and bool(running) and row_of(pool, session).moving == "restore"


def parked(pool: PoolUnderTest, stack: ExitStack, first: int) -> tuple[Session, list[torch.Tensor], Session]:
    """A session whose values are on the host, and the one that it was evicted for."""
    session, other = (stack.enter_context(pool.session()) for _ in range(2))
    held = hold(session, first)
    hold(other, first + PARTS)
    wait_for(lambda: row_of(pool, session).tier == "host")
    return session, held, other


def add_one(session: Session, held: list[torch.Tensor]) -> None:
    with session.capture():
        for tensor in reversed(held):
            tensor += 1


class InThread:
    """A cell that runs beside the test."""

    def __init__(self, session: Session, held: list[torch.Tensor]) -> None:
        self.error: BaseException | None = None

        def run() -> None:
            try:
                add_one(session, held)
            except BaseException as error:  # noqa: BLE001 - handed to the test
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


def test_a_cell_runs_before_its_session_is_back_and_finds_all_as_it_was(pool: PoolUnderTest) -> None:
    with ExitStack() as stack:
        session, held, _ = parked(pool, stack, 0)
        cell = InThread(session, held)
        wait_for(lambda: runs_while_restored(pool, session))
        cell.join()
        assert cell.error is None
        for number, tensor in enumerate(held):
            assert torch.equal(session.fetch(tensor), part(number) + 1)


def test_a_cell_whose_device_dies_before_its_session_is_back_runs_again(pool: PoolUnderTest) -> None:
    """The stopped cell has changed none of the parked values."""
    with ExitStack() as stack:
        session, held, other = parked(pool, stack, 100)
        other.close()
        cell = InThread(session, held)
        wait_for(lambda: runs_while_restored(pool, session))
        kill_worker(pool)
        cell.join()
        assert cell.error is None
        for number, tensor in enumerate(held):
            assert torch.equal(session.fetch(tensor), part(100 + number) + 1)


def test_bytes_that_turn_out_to_be_others_while_a_cell_runs_are_never_used(pool: PoolUnderTest) -> None:
    with ExitStack() as stack:
        session, held, _ = parked(pool, stack, 200)
        flip_a_byte(arenas(pool), part(200).numpy().tobytes()[:4096])  # of what the cell reads last
        cell = InThread(session, held)
        wait_for(lambda: runs_while_restored(pool, session))
        cell.join()
        assert isinstance(cell.error, ValueLost)
        assert "not what was stored" in str(cell.error)
        again = hold(session, 200)
        add_one(session, again)
        assert torch.equal(session.fetch(again[0]), part(200) + 1)


def test_a_cell_is_interrupted_and_a_session_closed_before_it_is_back(pool: PoolUnderTest) -> None:
    with ExitStack() as stack:
        session, held, _ = parked(pool, stack, 300)
        cell = InThread(session, held)
        wait_for(lambda: runs_while_restored(pool, session))
        own = session.welcome.session
        (job,) = [
            job.job for job in pool.rest.jobs(limit=20) if job.session == own and job.state == "RUNNING"
        ]
        pool.rest.cancel(job)
        cell.join()
        assert cell.error is not None
    wait_for(lambda: pool.rest.memory().devices[0].used_bytes == 0)
    wait_for(lambda: pool.rest.memory().devices[0].host_used_bytes == 0)
