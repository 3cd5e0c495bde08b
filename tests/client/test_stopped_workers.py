"""Processes of a pool that are stopped for a while, as by a debugger or a busy machine: nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from device_kind import KIND
from real_pool import DEADLINE_S, PoolUnderTest, wait_for

from djinn_lab.client.session import Session

pytestmark = pytest.mark.processes


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path, devices=f"{KIND}:2") as running:
        yield running


def doubled(session: Session, values: list[torch.Tensor]) -> torch.Tensor:
    with session.capture():
        values[0] = values[0] * 2
    return values[0].cpu()


def test_a_stopped_worker_keeps_its_values_and_blocks_no_other_device(pool: PoolUnderTest) -> None:
    ones = torch.ones(64, 64)
    with pool.session() as ann, pool.session() as bob:
        kept = {ann: [ones], bob: [ones]}
        for session in (ann, bob):
            doubled(session, kept[session])
        home = ann.device
        assert {home, bob.device} == {f"{KIND}:0", f"{KIND}:1"}
        (pid,) = [row.pid for row in pool.rest.status().devices if row.device == home]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_for(lambda: "silent" in [row.state for row in pool.rest.status().devices])
            answer: list[torch.Tensor] = []
            cell = threading.Thread(target=lambda: answer.append(doubled(ann, kept[ann])))
            cell.start()
            wait_for(lambda: any(job.finished_at is None for job in pool.rest.jobs()))
            (job,) = [one for one in pool.rest.jobs() if one.finished_at is None]
            assert "does not answer" in pool.rest.why(job.job).sentence
            for _ in range(3):
                assert torch.equal(doubled(bob, [ones]), 2 * ones)  # meanwhile
            with pool.session() as eve:
                assert torch.equal(doubled(eve, [ones]), 2 * ones)
            assert not answer
        finally:
            os.kill(pid, signal.SIGCONT)
        cell.join(DEADLINE_S)
        assert torch.equal(answer[0], 4 * ones)
        assert [row.restarts for row in pool.rest.status().devices] == [0, 0]


def long_cell(session: Session, rounds: int = 400) -> torch.Tensor:
    with session.capture():
        matrix = torch.eye(256) * 0.5 + 0.5 / 256
        for _ in range(rounds):
            matrix = matrix @ matrix
            matrix = matrix / matrix.sum(1, keepdim=True)
    return matrix.cpu()


def running(pool: PoolUnderTest) -> set[str]:
    return {job.user for job in pool.rest.jobs() if job.state == "RUNNING"}


def test_a_server_that_is_stopped_for_a_while_loses_no_cell_of_two_users(tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1") as pool:
        with pool.session("ann") as ann, pool.session("bob") as bob, ThreadPoolExecutor(1) as threads:
            expected = long_cell(bob)
            cell = threads.submit(long_cell, ann)
            wait_for(lambda: running(pool))
            os.kill(pool.info.pid, signal.SIGSTOP)
            try:
                with pytest.raises(httpx.TimeoutException):
                    httpx.get(f"{pool.info.url}/v1/alive", timeout=3.0, trust_env=False)
            finally:
                os.kill(pool.info.pid, signal.SIGCONT)
            assert torch.equal(cell.result(DEADLINE_S), expected)
            assert torch.equal(long_cell(bob), expected)
        assert {job.state for job in pool.rest.jobs()} == {"DONE"}
        assert [row.restarts for row in pool.rest.status().devices] == [0]


OTHER_USER = """
import sys, torch
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
session = Session(sys.argv[1], sys.argv[2], default_profile(), "bob")
print("open", flush=True)
sys.stdin.readline()
with session.capture():
    total = float(torch.ones(8, 8).sum())
print(total, flush=True)
session.close()
"""
"""A user in a process of its own, since a process captures one cell at a time."""


def test_a_worker_that_is_stopped_under_a_cell_delays_the_cells_of_others_and_fails_none(
    tmp_path: Path,
) -> None:
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1") as pool, pool.session("ann") as ann:
        expected = long_cell(ann)
        command = [sys.executable, "-c", OTHER_USER, pool.info.url, pool.rest.create_user("bob").token]
        with (
            ThreadPoolExecutor(1) as threads,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bob,
        ):
            assert bob.stdin is not None
            assert bob.stdout is not None
            assert bob.stdout.readline() == "open\n"
            cell = threads.submit(long_cell, ann)
            wait_for(lambda: running(pool) == {"ann"})
            (row,) = pool.rest.status().devices
            os.kill(row.workers["ann"], signal.SIGSTOP)
            try:
                print(file=bob.stdin, flush=True)
                wait_for(lambda: any(job.user == "bob" for job in pool.rest.jobs()))
            finally:
                os.kill(row.workers["ann"], signal.SIGCONT)
            assert bob.stdout.readline() == "64.0\n"
            assert torch.equal(cell.result(DEADLINE_S), expected)
        assert {job.state for job in pool.rest.jobs()} == {"DONE"}
        assert [row.restarts for row in pool.rest.status().devices] == [0]
