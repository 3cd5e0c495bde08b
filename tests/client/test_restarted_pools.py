"""A session whose pool was restarted while its notebook was idle."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest

from djinn_lab.client.connect import connect
from djinn_lab.client.credentials import TOKEN_VARIABLE
from djinn_lab.client.session import Session
from djinn_lab.errors import AuthenticationError, PoolError, PoolLost, ValueLost
from djinn_lab.pool.launch import stop_pool

pytestmark = pytest.mark.processes


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1") as running:
        yield running


def restart(pool: PoolUnderTest) -> None:
    stop_pool()
    pool.start()


def use(session: Session, change: str, large: torch.Tensor) -> float:
    with session.capture():
        if change == "in place":
            large.mul_(2)
            total = large.sum()
        else:
            total = (large * 2).sum()
    return float(total)


@pytest.mark.parametrize("change", ["read", "in place"])
@pytest.mark.parametrize("count", [20_000, 1_000_000], ids=["hashed", "unhashed"])
def test_cell_that_uploads_after_a_restart_fails_once_and_the_next_runs(
    pool: PoolUnderTest, change: str, count: int
) -> None:
    session = connect()
    with session.capture():
        held = torch.ones(3) + 1
        random = torch.rand(2)
    torch.manual_seed(1)
    restart(pool)
    large = torch.ones(count)
    with pytest.raises(PoolLost, match="went away"):
        use(session, change, large)
    assert use(session, change, large) == 2 * count
    assert large[0].item() == (2 if change == "in place" else 1)
    for value in (held, random):
        with pytest.raises(ValueLost):
            value.tolist()
    session.close()


def test_cell_with_ops_before_its_upload_after_a_restart_fails_once(pool: PoolUnderTest) -> None:
    session = connect()
    with session.capture():
        held = torch.ones(3) + 1
    restart(pool)
    large, seen = torch.ones(30_000), torch.ones(3)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with pytest.raises(PoolLost), session.capture():
        kept = held * 2 + torch.rand(3)
        seen.add_(1)
        kept = kept + large.sum()
    with session.capture():
        drawn = torch.rand(2)
        seen.add_(1)
        total = large.sum()
    assert (seen.tolist(), total.item()) == ([2.0] * 3, 30_000)
    assert torch.equal(drawn.cpu(), expected)
    session.close()


def test_caught_failure_of_an_upload_does_not_take_values_to_the_new_pool(pool: PoolUnderTest) -> None:
    session = connect()
    with session.capture():
        held = torch.ones(3) + 1
    restart(pool)
    large = torch.ones(30_000)
    with pytest.raises((PoolLost, ValueLost)), session.capture():
        with pytest.raises(PoolLost):
            large.cuda() + 1
        _ = (held + 1).sum().item()
    with session.capture():
        after = torch.ones(30_000) + 1
    assert after.sum().item() == 60_000
    session.close()


def users_of(pool: PoolUnderTest, cell: str) -> list[str]:
    return [job.user for job in pool.rest.jobs(limit=200) if job.cell == cell]


@pytest.mark.parametrize("given_by", ["argument", "variable"])
def test_session_with_a_users_token_is_that_users_after_a_restart(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, given_by: str
) -> None:
    token = pool.rest.create_user("ann").token
    monkeypatch.setenv(TOKEN_VARIABLE, token if given_by == "variable" else "another one")
    session = connect(token=token if given_by == "argument" else None)
    monkeypatch.delenv(TOKEN_VARIABLE)
    restart(pool)
    with pytest.raises(PoolLost):
        session.signal_phase("SOON")
    with session.capture("afterwards"):
        torch.ones(2).cuda().sum().item()
    assert users_of(pool, "afterwards") == ["ann"]
    assert [row.user for row in session.pool.sessions()] == ["ann"]
    with pytest.raises(PoolError, match="needs the role"):
        session.pool.users()
    session.close()


def test_session_whose_given_token_a_restarted_pool_refuses_says_so(pool: PoolUnderTest) -> None:
    session = connect(token=pool.info.token)
    restart(pool)
    with pytest.raises(PoolLost):
        session.signal_phase("SOON")
    for _ in range(2):
        with pytest.raises(AuthenticationError, match=r"the token\. It was started after this session"):
            session.signal_phase("SOON")


def test_session_without_a_token_of_its_own_follows_the_owners_to_the_same_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1", port=port) as pool:
        session = connect()
        first = session.pool.status().pool
        restart(pool)
        with pytest.raises(PoolLost):
            session.signal_phase("SOON")
        with session.capture():
            total = torch.ones(2).cuda().sum()
        assert total.item() == 2
        assert session.pool.status().pool != first
        session.close()
