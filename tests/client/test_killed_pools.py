"""``kill -9`` of the pool's server at any moment: notebooks continue once it is started again."""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cut_connections import Proxy
from device_kind import KIND
from real_pool import PoolUnderTest, wait_for
from torch import nn

from djinn_lab.client import executor
from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.errors import CellCancelled, PoolLost, ValueLost
from djinn_lab.pool.launch import stop_pool
from djinn_lab.protocol.rest.jobs import JobView

pytestmark = pytest.mark.processes
ROUNDS = 3000


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1") as running:
        yield running


@pytest.fixture
def session(pool: PoolUnderTest) -> Iterator[Session]:
    made = connect(name="a notebook")
    yield made
    made.close()


def restart(pool: PoolUnderTest) -> None:
    pool.kill()
    pool.start()


@contextmanager
def restarted_when(pool: PoolUnderTest, reached: Callable[[], object]) -> Iterator[None]:
    """Kill and start the pool once ``reached`` is true, beside the block."""

    def act() -> None:
        wait_for(reached)
        restart(pool)

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def any_job(pool: PoolUnderTest, state: str) -> Callable[[], bool]:
    return lambda: any(job.state == state for job in pool.rest.jobs(limit=10))


def matrix() -> torch.Tensor:
    return torch.randn(200, 200, generator=torch.Generator().manual_seed(3))


def long_work(x: torch.Tensor, rounds: int = ROUNDS) -> torch.Tensor:
    for _ in range(rounds):
        x = (x @ x).clamp_(-1, 1)
    return x


def jobs_named(pool: PoolUnderTest, cell: str) -> list[JobView]:
    return [job for job in pool.rest.jobs(limit=200) if job.cell == cell]


def charged(pool: PoolUnderTest, job: str) -> list[int]:
    return [row.stretches for row in pool.rest.usage() if row.job == job]


def test_variables_of_an_idle_notebook_come_back_bit_for_bit_twice_in_a_row(
    pool: PoolUnderTest, session: Session
) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 8))
    large = torch.randn(512, 600)
    twin, state = copy.deepcopy(model), torch.get_rng_state()
    expected = large.sum()
    for _ in range(4):
        train(twin)
    drawn = torch.rand(3)
    torch.set_rng_state(state)
    with session.capture():
        total = large.sum()
    for number in range(4):
        with session.capture(f"cell {number}") as cell:
            train(model)
        assert ("pool killed and started again" in cell.report.recovery) == (number in (1, 3))
        if number in (0, 2):
            restart(pool)
    restart(pool)
    with session.capture():
        found = torch.rand(3)
    assert torch.equal(found.cpu(), drawn)
    assert torch.equal(total.cpu(), expected)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.detach().cpu(), theirs)
    assert {job.state for job in pool.rest.jobs(limit=200)} == {"DONE"}


def train(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    model(torch.ones(2, 8)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad


def test_a_running_cell_ends_with_the_right_result_and_is_charged_once(
    pool: PoolUnderTest, session: Session
) -> None:
    with session.capture():
        counter = torch.zeros(3).cuda()
    updates: list[str] = []
    with restarted_when(pool, any_job(pool, "RUNNING")), session.capture("long") as cell:
        session.executor.on_update = lambda update: updates.append(update.reason)
        counter.add_(1)
        y = long_work(matrix().cuda())
    assert torch.equal(counter.cpu(), torch.ones(3))
    assert torch.equal(y.cpu(), long_work(matrix()))
    (job,) = jobs_named(pool, "long")
    assert (job.state, job.segments) == ("DONE", cell.report.program_hits + cell.report.program_misses)
    assert charged(pool, job.job) == [job.segments]
    assert "pool killed in long and started again" in cell.report.recovery
    assert cell.report.stages["reconnecting"] > cell.report.stages.get("network", 0.0)
    assert any("the cell waits for it to come back" in reason for reason in updates)


def notebook(pool: PoolUnderTest, rounds: int) -> subprocess.Popen[bytes]:
    """Run a notebook with a long cell in a process of its own."""
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from test_killed_pools import connect, long_work, matrix, torch
session = connect(name="another notebook")
with session.capture("first"):
    y = torch.ones(3).cuda()
with session.capture("long"):
    z = long_work(matrix().cuda(), {rounds})
assert torch.equal(z.cpu(), long_work(matrix(), {rounds}))
"""
    return subprocess.Popen([sys.executable, "-c", code], env=pool.environment)


def test_a_queued_cell_stays_ahead_of_newer_ones_and_runs(pool: PoolUnderTest, session: Session) -> None:
    other = notebook(pool, 3 * ROUNDS)
    wait_for(lambda: any(job.state == "RUNNING" for job in jobs_named(pool, "long")))
    # on a busy machine it was never seen queued; if it ran between two parts of the long cell, it is done
    with restarted_when(pool, lambda: {job.state for job in jobs_named(pool, "behind")} & {"QUEUED", "DONE"}):
        with session.capture("behind"):
            y = torch.ones(3).cuda() + 1
    assert y.tolist() == [2.0] * 3
    assert other.wait() == 0
    assert {job.state for job in pool.rest.jobs(limit=200)} == {"DONE"}
    behind, ahead = jobs_named(pool, "behind"), jobs_named(pool, "long")
    assert behind[0].finished_at > ahead[0].started_at  # type: ignore[operator]


def test_an_answer_that_was_committed_and_lost_is_sent_by_the_next_pool(pool: PoolUnderTest) -> None:
    with Proxy(pool.info.url) as proxy:
        session = Session(proxy.url, pool.info.token, default_profile(), "behind a proxy")
        with session.capture():
            counter = torch.zeros(20_000).cuda()
        proxy.hold_answers()

        def lose() -> None:
            wait_for(lambda: [job.state for job in jobs_named(pool, "add")] == ["WAITING"])
            restart(pool)
            proxy.lose_answers()

        losing = threading.Thread(target=lose)
        losing.start()
        with session.capture("add") as cell:
            found = counter.add_(1).cpu()  # a result that is a file
        losing.join()
        assert torch.equal(found, torch.ones(20_000))
        assert torch.equal(counter.cpu(), torch.ones(20_000))
        charges = wait_for(lambda: charged(pool, str(cell.report.job)))  # the end of a cell has no answer
        assert charges == [1]
        session.close()


def test_training_with_dropout_is_bit_for_bit_equal_while_the_pool_is_killed_again_and_again(
    pool: PoolUnderTest, session: Session
) -> None:
    def run(device: str) -> list[float]:
        torch.manual_seed(5)
        network = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 1))
        network.to(device)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        losses = []
        for _ in range(600):
            x = torch.randn(8, 16).to(device)
            loss = (network(x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    over, kills = threading.Event(), []

    def kill_now_and_then() -> None:
        chance = random.Random(7)
        while len(kills) < 3 and not over.wait(chance.uniform(0.2, 0.9)):
            restart(pool)
            kills.append(1)

    expected = run("cpu")
    killing = threading.Thread(target=kill_now_and_then)
    killing.start()
    try:
        with session.capture("training") as cell:
            found = run("cuda")
    finally:
        over.set()
        killing.join()
    assert found == expected
    assert kills
    (job,) = jobs_named(pool, "training")
    assert job.state == "DONE"
    assert charged(pool, str(cell.report.job)) == [job.segments]


def test_two_users_continue_with_their_own_values(pool: PoolUnderTest) -> None:
    with pool.session("ann") as ann, pool.session("bob") as bob:
        made = []
        for number, session in enumerate((ann, bob)):
            with session.capture():
                made.append(torch.full((3,), float(number)).cuda())
        restart(pool)
        for number, session in enumerate((ann, bob)):
            with session.capture() as cell:
                made[number].add_(10)
            assert cell.report.recovery
            assert made[number].tolist() == [10.0 + number] * 3
        assert {row.user for row in pool.rest.sessions()} == {"ann", "bob"}


@pytest.mark.parametrize("gone", [False, True])
def test_parked_values_come_back_from_their_copy_or_are_named_as_lost(tmp_path: Path, gone: bool) -> None:
    mib = 2**20
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1", memory_bytes=64 * mib) as pool:
        first, second = connect(), connect()
        x = torch.randn(9 * mib)
        with first.capture():
            small = torch.rand(3).cuda()
            y = x.cuda().mul_(2)
        with second.capture():
            other = torch.full((9 * mib,), 3.0).cuda()  # both do not fit
        wait_for(lambda: any(row.tier == "host" for row in pool.rest.memory().sessions))
        pool.kill()
        if gone:
            shutil.rmtree(Path(str(first.welcome.blob_directory)).parent)
        pool.start()
        for session, value, expected in ((first, y, x * 2), (second, other, torch.full((9 * mib,), 3.0))):
            if not gone:
                with session.capture() as cell:
                    total = value.sum()
                assert "pool killed and started again" in cell.report.recovery
                assert total.item() == expected.sum().item()
                assert torch.equal(value.cpu(), expected)
        if gone:
            with pytest.raises(ValueLost, match="The pool was killed and started again, and this session's"):
                small.tolist()
            with first.capture():
                after = torch.ones(2).cuda() + 1
            assert after.tolist() == [2.0, 2.0]
        first.close()
        second.close()


def test_a_cell_whose_client_was_killed_meanwhile_ends_and_the_values_stay(pool: PoolUnderTest) -> None:
    child = notebook(pool, 10 * ROUNDS)
    wait_for(lambda: any(job.state == "RUNNING" for job in jobs_named(pool, "long")))
    pool.kill()
    child.kill()
    child.wait()
    pool.start()
    job = wait_for(lambda: next((one for one in jobs_named(pool, "long") if one.state == "CANCELLED"), None))
    assert "the client went away" in job.reason
    (left,) = pool.rest.sessions()
    assert left.state == "detached"
    assert [one.state for one in jobs_named(pool, "first")] == ["DONE"]


def test_the_stop_button_ends_the_wait_and_the_values_are_there_afterwards(
    pool: PoolUnderTest, session: Session
) -> None:
    with session.capture():
        kept = torch.rand(3).cuda()
    before = kept.tolist()

    def stop() -> None:
        wait_for(any_job(pool, "RUNNING"))
        pool.kill()
        wait_for(lambda: waits)
        os.kill(os.getpid(), signal.SIGINT)

    waits: list[str] = []
    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises((CellCancelled, KeyboardInterrupt)), session.capture("stopped"):
        session.executor.on_update = lambda update: (
            waits.append(update.reason) if "does not answer" in update.reason else None
        )
        _ = long_work(matrix().cuda()).sum().item()
    stopping.join()
    pool.start()
    with session.capture():
        after = kept * 2
    assert after.tolist() == [2 * value for value in before]
    wait_for(lambda: [job.state for job in jobs_named(pool, "stopped")] == ["CANCELLED"])


def test_a_pool_that_was_stopped_is_not_waited_for(pool: PoolUnderTest, session: Session) -> None:
    with session.capture():
        y = torch.rand(3).cuda()
    stop_pool()
    pool.start()
    with pytest.raises(PoolLost, match="it was stopped"), session.capture():
        y.add_(1)
    assert pool.rest.sessions() == []


def test_a_pool_that_does_not_come_back_is_named(
    pool: PoolUnderTest, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "RESUME_S", 0.5)
    with session.capture():
        y = torch.rand(3).cuda()
    pool.kill()
    with pytest.raises(PoolLost, match="went away"), session.capture():
        y.add_(1)
    pool.start()
