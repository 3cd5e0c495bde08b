"""One pool for all tests that do it no harm, and fresh ones for the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from device_kind import KIND
from gang_kit import DEVICE_BYTES
from pool_kit import Client, act, running_pool
from real_pool import PoolUnderTest, found_by_module
from throwaway_postgresql import Postgresql, running_postgresql

from djinn_lab.pool.database.address import checked_url
from djinn_lab.protocol.runtime_file import RuntimeInfo


@pytest.fixture(scope="session")
def shared_pool_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="session")
def shared_pool(shared_pool_directory: Path) -> Iterator[RuntimeInfo]:
    with running_pool(shared_pool_directory) as info:
        yield info


@pytest.fixture(scope="module", autouse=True)
def shared_pool_is_found(request: pytest.FixtureRequest) -> Iterator[None]:
    with found_by_module(request):
        yield


@pytest.fixture
def pool_lives_on(shared_pool: RuntimeInfo) -> Iterator[None]:
    """Assert after the test that the shared pool still runs a cell."""
    yield
    with Client(shared_pool) as client:
        assert client.run(act("")).outcome == "done"


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[RuntimeInfo]:
    with running_pool(tmp_path) as info:
        yield info


@pytest.fixture
def client(shared_pool: RuntimeInfo) -> Iterator[Client]:
    with Client(shared_pool) as client:
        yield client


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A pool of real workers on two devices, for gangs."""
    with PoolUnderTest(tmp_path_factory.mktemp("gangs"), f"{KIND}:2", DEVICE_BYTES) as pool:
        yield pool


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Postgresql]:
    with running_postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of either kind."""
    if request.param == "sqlite":
        return checked_url(f"sqlite:///{tmp_path / 'db'}")
    server: Postgresql = request.getfixturevalue("postgresql")
    return checked_url(server.new_database())
