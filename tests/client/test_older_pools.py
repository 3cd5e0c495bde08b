"""A client beside a pool of an older protocol: what it would ignore is refused, the rest works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from device_kind import KIND
from msgspec.structs import replace
from real_pool import PoolUnderTest

from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.session import Session
from djinn_lab.errors import VersionMismatch
from djinn_lab.jobs import Terms
from djinn_lab.protocol import messages

pytestmark = pytest.mark.processes


def total(session: Session, terms: Terms) -> float:
    with session.capture("In [1]", terms=terms):
        result = torch.ones(3) + 1
    return float(result.sum())


@pytest.mark.parametrize(
    ("version", "asked", "refusal"),
    [
        (4, Terms(target="cpu:7"), "does not know --target"),
        (
            4,
            Terms(tolerates=("vision",), after_timeout_s=1.0, after=("abc",)),
            "--after-timeout and --tolerate",
        ),
        (3, Terms(timeout_s=60.0), "does not know --timeout"),
    ],
)
def test_what_an_older_pool_would_ignore_is_refused_with_both_versions(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, version: int, asked: Terms, refusal: str
) -> None:
    open_newest = PoolConnection.__init__

    def open_older(connection: PoolConnection, *arguments: Any, **options: Any) -> None:
        """Connect to a pool that answers the handshake as one of ``version`` does."""
        open_newest(connection, *arguments, **options)
        connection.welcome = replace(connection.welcome, protocol_version=version)

    monkeypatch.setattr(PoolConnection, "__init__", open_older)
    with pool.session() as session:
        assert session.welcome.protocol_version == version
        with pytest.raises(VersionMismatch) as refused:
            total(session, asked)
        assert refusal in refused.value.message
        assert f"speaks protocol {version}, " in refused.value.message
        assert f"this djinn-lab speaks protocol {messages.PROTOCOL_VERSION}" in refused.value.message
        assert [job for job in pool.rest.jobs() if job.session == session.welcome.session] == []
        assert total(session, Terms()) == 6
        if version >= 4:
            assert total(session, Terms(deadline_s=60.0)) == 6


def test_the_same_is_taken_by_a_pool_of_this_version(pool: PoolUnderTest) -> None:
    with pool.session() as session:
        assert total(session, Terms(target=f"{KIND}:1", tolerates=("vision",))) == 6
        (*_, job) = [one for one in pool.rest.jobs() if one.session == session.welcome.session]
        assert job.device == f"{KIND}:1"
