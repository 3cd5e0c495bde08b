"""What a killed worker left in host memory counts, until it is restored, replaced or gives way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from launcher_kit import DEVICE_BYTES, MIB, LocalSite, Workers, local_site
from programs import Script

from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.protocol.worker import (
    CopyDone,
    CopyFailed,
    CopyOrder,
    Evict,
    FromWorker,
    Restore,
    StoreState,
    WorkerReady,
)

pytestmark = pytest.mark.processes

ONE = "cpu:0"
HOST_BYTES = 40 * MIB
STATE_BYTES = 24 * MIB
"""Of a session: the host has space for one of them, the device for two."""


@pytest.fixture
def workers() -> Iterator[Workers]:
    with local_site() as site:
        made = Workers(site)
        plan = DevicePlan(ONE, "cpu", DEVICE_BYTES, 1, HOST_BYTES)
        made.do(lambda: made.launcher.spawn(plan, made.heard))
        made.next(ONE, WorkerReady)
        yield made
        made.leave()


def load(workers: Workers, session: str) -> tuple[Script, int, torch.Tensor]:
    tensor = torch.randint(0, 255, (STATE_BYTES,), dtype=torch.uint8)
    script = Script()
    value = script.load(tensor)
    workers.run(ONE, session, script.program(keep=(value,)))
    return script, value, tensor


def held(workers: Workers, session: str, script: Script, value: int) -> bytes:
    return workers.values(workers.run(ONE, session, script.program(fetch=(value,))))[0]


def copied(workers: Workers, order: CopyOrder) -> CopyDone | CopyFailed:
    workers.do(lambda: workers.launcher.copy(ONE, order))
    answer: FromWorker | None = None
    while not isinstance(answer, CopyDone | CopyFailed):
        answer = workers.answer(ONE)
    return answer


def taken_bytes(workers: Workers) -> int:
    """Return what all arenas take of shared memory."""
    assert isinstance(workers.site, LocalSite)
    return sum(path.stat().st_blocks * 512 for path in host_directory(workers).rglob("*.arena"))


def host_directory(workers: Workers) -> Path:
    found = workers.site._parked[0]  # type: ignore[attr-defined]
    assert isinstance(found, Path)
    return found


def test_parked_state_of_a_killed_worker_counts_and_its_copy_gives_way_once_restored(
    workers: Workers,
) -> None:
    script, value, tensor = load(workers, "ann")
    stored = copied(workers, StoreState(1, "ann"))
    assert isinstance(stored, CopyDone)
    assert stored.manifest is not None
    copied(workers, Evict(2, "ann"))
    workers.heard.kept = [stored.manifest]
    workers.site.kill(ONE)
    workers.lost(ONE)

    theirs, number, other = load(workers, "bob")
    refused = copied(workers, StoreState(3, "bob"))
    assert isinstance(refused, CopyFailed)
    assert refused.full == "host"
    assert taken_bytes(workers) <= HOST_BYTES

    workers.heard.spare = [stored.manifest]  # as soon as the restore has ended
    copied(workers, Restore(4, "ann", manifest=stored.manifest))
    assert held(workers, "ann", script, value) == tensor.numpy().tobytes()
    assert isinstance(copied(workers, StoreState(5, "bob")), CopyDone)
    assert taken_bytes(workers) <= HOST_BYTES
    copied(workers, Evict(6, "bob"))
    copied(workers, Restore(7, "bob"))
    assert held(workers, "bob", theirs, number) == other.numpy().tobytes()
    assert held(workers, "ann", script, value) == tensor.numpy().tobytes()
