"""A connection that breaks costs a notebook nothing but time: its session stays, and no cell runs twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from cut_connections import Proxy
from real_pool import PoolUnderTest

from djinn_lab.client import connection
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.errors import PoolLost
from djinn_lab.protocol.rest.jobs import JobView

pytestmark = pytest.mark.processes


@pytest.fixture
def proxy(pool: PoolUnderTest) -> Iterator[Proxy]:
    with Proxy(pool.info.url) as made:
        yield made


@pytest.fixture
def session(pool: PoolUnderTest, proxy: Proxy) -> Iterator[Session]:
    made = Session(proxy.url, pool.info.token, default_profile(), "behind a proxy")
    yield made
    made.close()


def long_work(x: torch.Tensor, rounds: int = 300) -> torch.Tensor:
    for _ in range(rounds):
        x = (x @ x).clamp_(-1, 1)
    return x


def matrix() -> torch.Tensor:
    return torch.randn(200, 200, generator=torch.Generator().manual_seed(3))


def until(reached: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def jobs_of(pool: PoolUnderTest, session: Session) -> list[JobView]:
    own = session.welcome.session
    return [job for job in pool.rest.jobs(limit=100) if job.session == own]


def beside(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_variables_are_there_after_the_connection_broke_between_two_cells(
    session: Session, proxy: Proxy
) -> None:
    before = session.welcome.session
    with session.capture():
        y = matrix().cuda() + 1
    for _ in range(2):
        proxy.cut()
        with session.capture():
            y = y * 2
    assert torch.equal(y.cpu(), (matrix() + 1) * 4)
    assert session.welcome.session == before


def test_a_cell_runs_while_there_is_no_way_to_the_pool(
    pool: PoolUnderTest, session: Session, proxy: Proxy
) -> None:
    def break_for_a_while() -> None:
        until(lambda: any(job.state == "RUNNING" for job in jobs_of(pool, session)))
        proxy.close_way()
        accepted = proxy.accepted
        until(lambda: proxy.accepted > accepted + 2)
        proxy.open_way()

    with session.capture():
        warm = long_work(matrix().cuda(), 3)
    breaking = beside(break_for_a_while)
    with session.capture() as cell:
        y = long_work(matrix().cuda(), 3000)
    breaking.join()
    assert torch.equal(y.cpu(), long_work(matrix(), 3000))
    assert torch.equal(warm.cpu(), long_work(matrix(), 3))
    job = pool.rest.job(cell.report.job)
    assert job.state == "DONE"
    assert job.ops_done == job.ops_total


def test_a_cell_runs_on_while_the_pool_is_slow_to_welcome_its_client_again(
    pool: PoolUnderTest, session: Session, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 1.0)

    def welcome_late() -> None:
        until(lambda: any(job.state == "RUNNING" for job in jobs_of(pool, session)))
        proxy.hold_answers(behind_handshakes=True)
        proxy.cut()
        accepted = proxy.accepted
        until(lambda: proxy.accepted > accepted + 3)
        proxy.pass_answers()

    sessions = len(pool.rest.sessions())
    with session.capture():
        long_work(matrix().cuda(), 3).sum().item()
    breaking = beside(welcome_late)
    with session.capture() as cell:
        y = long_work(matrix().cuda(), 6000)
    breaking.join()
    assert torch.equal(y.cpu(), long_work(matrix(), 6000))
    assert pool.rest.job(cell.report.job).state == "DONE"
    assert len(pool.rest.sessions()) == sessions


def test_an_answer_that_was_lost_on_the_way_is_sent_again(
    pool: PoolUnderTest, session: Session, proxy: Proxy
) -> None:
    with session.capture():
        counter = torch.zeros(4).cuda()

    def lose() -> None:
        until(lambda: sum(job.state == "DONE" for job in jobs_of(pool, session)) == 2)
        proxy.lose_answers()

    proxy.hold_answers()
    losing = beside(lose)
    with session.capture():
        counter.add_(1)
    losing.join()
    assert torch.equal(counter.cpu(), torch.ones(4))
    assert sum(job.cell.startswith("cell") for job in jobs_of(pool, session)) == 2


def test_training_is_bit_for_bit_equal_while_the_connection_breaks_again_and_again(
    session: Session, proxy: Proxy
) -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(5)
        network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
        network.to(device)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        losses = []
        for _ in range(150):
            x = torch.randn(8, 16).to(device)
            loss = (network(x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    over = threading.Event()

    def cut_now_and_then() -> None:
        chance = random.Random(7)
        while not over.wait(chance.uniform(0.01, 0.2)):
            proxy.cut()

    expected = train("cpu")
    cutting = beside(cut_now_and_then)
    try:
        with session.capture():
            found = train("cuda")
    finally:
        over.set()
        cutting.join()
    assert found == expected


def test_a_signal_after_the_connection_broke_is_answered(session: Session, proxy: Proxy) -> None:
    proxy.cut()
    assert session.signal_phase("IO_WAIT", 5.0).answer in ("accepted", "clipped")


def test_the_stop_button_ends_the_wait_for_a_way_to_the_pool(
    pool: PoolUnderTest, session: Session, proxy: Proxy
) -> None:
    def stop() -> None:
        until(lambda: any(job.state == "RUNNING" for job in jobs_of(pool, session)))
        proxy.close_way()
        accepted = proxy.accepted
        until(lambda: proxy.accepted > accepted + 1)
        os.kill(os.getpid(), signal.SIGINT)

    stopping = beside(stop)
    with pytest.raises((PoolLost, KeyboardInterrupt)), session.capture():
        _ = long_work(matrix().cuda(), 3000).sum().item()
    stopping.join()
    proxy.open_way()
    with session.capture():
        y = matrix().cuda() + 1
    assert torch.equal(y.cpu(), matrix() + 1)


def test_a_client_that_was_killed_is_not_waited_for(pool: PoolUnderTest) -> None:
    program = """
import torch, djinn_lab
session = djinn_lab.connect(name="killed")
print(session.welcome.session, flush=True)
with session.capture():
    x = torch.randn(200, 200).cuda()
    for _ in range(20000):
        x = (x @ x).clamp_(-1, 1)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=pool.environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        own = child.stdout.readline().strip()

        def state() -> str:
            return next((job.state for job in pool.rest.jobs(limit=20) if job.session == own), "")

        until(lambda: state() == "RUNNING")
        child.kill()
    until(lambda: state() == "CANCELLED", 20)
