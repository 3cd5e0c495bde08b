"""One pool, and kernels that tests use again: a fresh one takes seconds of processor time to load torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from notebook_kernel import KernelStock, NotebookKernel, TakeKernels
from real_pool import PoolUnderTest, found_by_module


@pytest.fixture(scope="session")
def shared_pool_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="session")
def shared_pool(shared_pool_directory: Path) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(shared_pool_directory) as running:
        yield running


@pytest.fixture(scope="session")
def pool(shared_pool: PoolUnderTest) -> PoolUnderTest:
    return shared_pool


@pytest.fixture(scope="module", autouse=True)
def shared_pool_is_found(request: pytest.FixtureRequest) -> Iterator[None]:
    with found_by_module(request):
        yield


@pytest.fixture(scope="module")
def kernels(pool: PoolUnderTest) -> Iterator[KernelStock]:
    with KernelStock(pool.environment) as stock:
        yield stock


@pytest.fixture
def notebooks(kernels: KernelStock, request: pytest.FixtureRequest) -> Iterator[TakeKernels]:
    """Give a call that returns so many kernels, with nothing but the extension loaded."""
    failed_before = request.session.testsfailed
    with ExitStack() as stack:
        yield lambda count: stack.enter_context(kernels.taken(count))
        if request.session.testsfailed > failed_before:
            kernels.discard()


@pytest.fixture
def notebook(notebooks: TakeKernels) -> NotebookKernel:
    (kernel,) = notebooks(1)
    return kernel


@pytest.fixture
def own_notebook(pool: PoolUnderTest) -> Iterator[NotebookKernel]:
    """A kernel like ``notebook`` in a process that no other test uses, for tests that change or end it."""
    with NotebookKernel(pool.environment) as kernel:
        kernel.load()
        yield kernel
