from __future__ import annotations

from collections.abc import Iterator

import pytest
from notebook_kernel import NotebookKernel
from real_pool import PoolUnderTest


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture
def notebook(pool: PoolUnderTest) -> Iterator[NotebookKernel]:
    """A kernel with the extension loaded."""
    with NotebookKernel(pool.environment) as kernel:
        assert kernel.run("%load_ext djinn_lab\nimport torch").status == "ok"
        yield kernel
