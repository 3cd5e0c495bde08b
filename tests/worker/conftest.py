"""Devices that leave nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from worker_kit import Device

settings.register_profile("worker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("worker")


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    root = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=root if root.is_dir() else None, prefix="djinn-test-") as made:
        yield Path(made)


@pytest.fixture
def make_device(shared_memory: Path) -> Iterator[Callable[..., Device]]:
    made: list[Device] = []

    def make(**options: object) -> Device:
        device = Device(shared_memory / str(len(made)), name=f"cpu:{len(made)}", **options)  # type: ignore[arg-type]
        made.append(device)
        return device

    yield make
    for device in made:
        device.close()
        assert device.memory().used_bytes == 0
        assert device.memory().host_bytes == 0
        assert device.memory().disk_bytes == 0
