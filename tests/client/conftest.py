from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_pool import PoolUnderTest, found_by_module

from djinn_lab.capture.recorders import CHOICE
from djinn_lab.client.session import Session


@pytest.fixture(scope="session")
def shared_pool_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="session")
def shared_pool(shared_pool_directory: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(shared_pool_directory) as running:
        yield running


@pytest.fixture(scope="session")
def pool(shared_pool: PoolUnderTest) -> PoolUnderTest:
    """A real pool of two CPU devices, shared by the tests that do it no harm."""
    return shared_pool


@pytest.fixture(scope="module")
def tls_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("tls"), tls=True) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def shared_pool_is_found(request: pytest.FixtureRequest) -> Iterator[None]:
    with found_by_module(request):
        yield


@pytest.fixture
def session(pool: PoolUnderTest) -> Iterator[Session]:
    with pool.session() as opened:
        yield opened


@pytest.fixture(params=["native", "python"])
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have each recorder record the sessions that a test opens after it."""
    monkeypatch.setenv(CHOICE, request.param)
    return str(request.param)
