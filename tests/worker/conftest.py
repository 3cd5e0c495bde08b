"""Devices that leave nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from replaced_kernels import Kernel, replaced_kernels
from worker_kit import Device, WorkerUnderTest, start_worker

from djinn_lab.native import why_missing
from djinn_lab.worker.executor import find_executor

settings.register_profile("worker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("worker")


@contextmanager
def _shared_memory() -> Iterator[Path]:
    root = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=root if root.is_dir() else None, prefix="djinn-test-") as made:
        yield Path(made)


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    with _shared_memory() as made:
        yield made


Start = Callable[[], WorkerUnderTest]


@pytest.fixture(scope="module")
def idle_workers() -> Iterator[list[WorkerUnderTest]]:
    """Workers kept between two tests: starting a worker takes seconds of processor time."""
    idle: list[WorkerUnderTest] = []
    yield idle
    for worker in idle:
        worker.stop()


@pytest.fixture(scope="module")
def workers_memory() -> Iterator[Path]:
    with _shared_memory() as made:
        yield made


@pytest.fixture
def start(
    workers_memory: Path, idle_workers: list[WorkerUnderTest], request: pytest.FixtureRequest
) -> Iterator[Start]:
    """Give a call that returns a worker with host and disk tiers and no session, until the test's end."""
    failed_before = request.session.testsfailed
    given: list[WorkerUnderTest] = []

    def begin() -> WorkerUnderTest:
        given.append(idle_workers.pop() if idle_workers else start_worker(workers_memory))
        return given[-1]

    yield begin
    for worker in given:
        if worker.process.poll() is not None:
            continue
        if request.session.testsfailed > failed_before:
            worker.kill()
        else:
            worker.forget_all()
            idle_workers.append(worker)


@pytest.fixture(params=["native", "python"])
def native(request: pytest.FixtureRequest) -> bool:
    """Whether the C++ extension runs the programs; skips the native test if the extension is not built."""
    if request.param == "native" and find_executor() is None:
        pytest.skip(why_missing("executor"))
    return bool(request.param == "native")


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with replaced_kernels() as replace:
        yield replace


@pytest.fixture
def make_device(shared_memory: Path, native: bool) -> Iterator[Callable[..., Device]]:
    made: list[Device] = []
    results = shared_memory / "results"
    results.mkdir()

    def make(**options: object) -> Device:
        options.setdefault("native", native)
        options.setdefault("results", results)
        device = Device(shared_memory / str(len(made)), name=f"cpu:{len(made)}", **options)  # type: ignore[arg-type]
        made.append(device)
        return device

    yield make
    for device in made:
        device.close()
        assert device.memory().used_bytes == 0
        assert device.memory().host_bytes == 0
        assert device.memory().disk_bytes == 0
