"""The pool with its real workers, driven by real sessions: faults, cancels, two users, limits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from pool_kit import new_user, rest, running_pool
from real_pool import PoolUnderTest

from djinn_lab.client import executor
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.errors import DeviceMemoryError, PoolLost
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes

MIB = 2**20


def open_session(info: RuntimeInfo, token: str | None = None) -> Session:
    return Session(info.url, token or info.token, default_profile(), "a test")


@pytest.fixture(scope="module")
def real_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeInfo]:
    with PoolUnderTest(tmp_path_factory.mktemp("real"), memory_bytes=64 * MIB) as pool:
        yield pool.info


def long_cell(session: Session, steps: int = 400) -> None:
    """Run a cell of many seconds, with ops of some milliseconds."""
    with session.capture():
        x = weight = torch.eye(600)
        for _ in range(steps):
            x = x @ weight


def job_in_state(info: RuntimeInfo, state: str) -> JobView:
    deadline = time.monotonic() + 20
    while True:
        found = rest(info).jobs(state=state, limit=1)
        if found:
            return found[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_users_share_the_devices(real_pool: RuntimeInfo) -> None:
    _, token = new_user(real_pool)
    ann, bob = open_session(real_pool), open_session(real_pool, token)
    try:
        with ann.capture() as first:
            a = torch.arange(6.0).reshape(2, 3) @ torch.ones(3, 2)
        with bob.capture() as second:
            b = torch.arange(6.0).reshape(2, 3) @ torch.ones(3, 2)
        assert torch.equal(ann.fetch(a), bob.fetch(b))
        assert {first.report.device, second.report.device} == {f"{KIND}:0", f"{KIND}:1"}
        jobs = rest(real_pool).jobs(limit=2)
        assert len({job.user for job in jobs}) == 2
    finally:
        ann.close()
        bob.close()


def test_a_tensor_larger_than_the_device(real_pool: RuntimeInfo) -> None:
    session = open_session(real_pool)
    try:
        with session.capture():
            kept = torch.ones(4) * 3
        with pytest.raises(DeviceMemoryError, match=r"64\.0 MiB"), session.capture():
            torch.zeros(4096, 4096).sum().item()
        assert session.fetch(kept).tolist() == [3.0] * 4
    finally:
        session.close()


def test_cancel_from_elsewhere_while_running(real_pool: RuntimeInfo) -> None:
    session = open_session(real_pool)
    stopped: list[str] = []

    def stop() -> None:
        job = job_in_state(real_pool, "RUNNING")
        rest(real_pool).cancel(job.job)
        stopped.append(job.job)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            long_cell(session)
        thread.join()
        assert rest(real_pool).job(stopped[0]).state == "CANCELLED"
        with session.capture():
            after = torch.ones(2) + 1
        assert session.fetch(after).tolist() == [2.0, 2.0]
    finally:
        thread.join()
        session.close()


def test_a_worker_killed_in_mid_cell(real_pool: RuntimeInfo) -> None:
    session = open_session(real_pool)
    with session.capture():
        kept = torch.ones(3) + 1

    def kill() -> None:
        device = job_in_state(real_pool, "RUNNING").device
        (pid,) = [one.pid for one in rest(real_pool).status().devices if one.device == device]
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    long_cell(session)
    thread.join()
    assert session.fetch(kept).tolist() == [2.0] * 3
    with session.capture():
        after = torch.ones(2) + 1
    assert session.fetch(after).tolist() == [2.0, 2.0]
    session.close()


def test_a_pool_killed_in_mid_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "RESUME_S", 2.0)
    with running_pool(tmp_path, "cpu:1", memory_bytes=64 * MIB, worker_command=None) as info:
        session = open_session(info)

        def kill() -> None:
            job_in_state(info, "RUNNING")
            os.kill(info.pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(PoolLost):
            long_cell(session)
        thread.join()
        session.close()
