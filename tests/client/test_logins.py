"""A session whose login's tokens end while it works."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from issuer_kit import CLIENT, Issuer
from real_pool import PoolUnderTest, wait_for

from djinn_lab.client import logins
from djinn_lab.client.connect import connect
from djinn_lab.client.credentials import ways_in
from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import AuthenticationError
from djinn_lab.pool.identity.oidc import LEEWAY_S
from djinn_lab.pool.identity.roles import RoleMapping
from djinn_lab.pool.identity.settings import IdentitySettings, OidcSettings

pytestmark = pytest.mark.processes

LIFE_S = 3.0
"""For so long the pool takes each token."""


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer(LIFE_S - LEEWAY_S) as made:
        yield made


@pytest.fixture
def pool(issuer: Issuer, tmp_path: Path) -> Iterator[PoolUnderTest]:
    oidc = OidcSettings(issuer.url, CLIENT, CLIENT, "groups", RoleMapping(default="user"))
    with PoolUnderTest(tmp_path, f"{KIND}:1", identity=IdentitySettings(oidc).encoded()) as running:
        yield running


@pytest.fixture
def login(pool: PoolUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Log in, as on another machine. Return the pool's address."""
    there = tmp_path / "there"
    there.mkdir(mode=0o700)
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(there))
    monkeypatch.delenv("DJINN_TOKEN", raising=False)
    [way] = [one for one in ways_in(pool.info.url) if one.way == "oidc"]
    issuer = logins.discover(way)
    logins.save(pool.info.url, logins.finish(way, issuer, logins.begin(way, issuer)))
    monkeypatch.setattr("djinn_lab.client.credentials.read_runtime", lambda: None)
    return pool.info.url


def resumed(pool: PoolUnderTest) -> int:
    return sum(row.action == "session resumed" for row in pool.rest.audit(1000))


def test_session_continues_with_the_renewed_token_in_a_cell_and_between_cells(
    pool: PoolUnderTest, login: str
) -> None:
    with closing(connect(login)) as session:
        with session.capture():
            total = torch.rand(64, 64) * 0
        rounds = 0
        until_s = time.monotonic() + 3 * LIFE_S
        while time.monotonic() < until_s:
            with session.capture():
                for _ in range(50):
                    total += 1
                    last = float(total[0, 0])
            rounds += 50
            assert last == rounds
        assert resumed(pool) >= 2
        before = resumed(pool)
        wait_for(lambda: pool.rest.sessions()[0].ends_at)
        with session.capture():
            total += 1
        assert float(total[0, 0]) == rounds + 1
        assert resumed(pool) > before


def test_rest_client_renews_its_token(
    pool: PoolUnderTest, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJINN_POOL", login)
    with closing(PoolClient.find()) as client:
        assert client.status().user == "oidc:ann"
        first = logins.saved(login)
        wait_for(lambda: not first.token or _is_refused(login, first.token))
        assert client.status().user == "oidc:ann"


def test_session_whose_login_was_ended_says_so(pool: PoolUnderTest, login: str, issuer: Issuer) -> None:
    with closing(connect(login)) as session:
        with session.capture():
            kept = torch.rand(64, 64) * 2
        logins.save(login, None)
        wait_for(lambda: pool.rest.sessions()[0].ends_at)
        with pytest.raises(AuthenticationError, match="no token for the pool"):
            with session.capture():
                print(float(kept.sum()))


def _is_refused(url: str, token: str) -> bool:
    try:
        PoolClient(url, token).status()
    except AuthenticationError:
        return True
    return False
