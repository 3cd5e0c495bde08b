from __future__ import annotations

from collections.abc import Iterator

import pytest
from real_pool import PoolUnderTest

from djinn_lab.client.session import Session


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A real pool of two CPU devices, shared by the tests that do it no harm."""
    with PoolUnderTest(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture
def session(pool: PoolUnderTest) -> Iterator[Session]:
    with pool.session() as opened:
        yield opened
