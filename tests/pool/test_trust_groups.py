"""What a launcher keeps apart: sessions of different trust groups on one device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from launcher_kit import DEVICE_BYTES, MIB, SITES, LocalSite, Site, Workers
from programs import Script
from training import training

from djinn_lab.pool.launchers.processes import WORKER_COMMAND
from djinn_lab.protocol.worker import (
    Calibrate,
    Close,
    Closed,
    CopyDone,
    DeviceMeasured,
    Drop,
    Evict,
    Release,
    Released,
    Restore,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    SegmentStarted,
    StoreState,
    WorkerReady,
)
from djinn_lab.srg.program import Program

pytestmark = pytest.mark.processes

ONE, OTHER = "cpu:0", "cpu:1"


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with SITES[request.param]() as made:
        yield made


@pytest.fixture
def workers(site: Site) -> Iterator[Workers]:
    """A launcher with one device, and two users that do not trust each other."""
    made = Workers(site)
    made.heard.groups = {"ann": "ann", "ann's other": "ann", "bob": "bob"}
    made.ready(ONE)
    yield made
    made.leave()


def hold(workers: Workers, session: str, tensor: torch.Tensor, device: str = ONE) -> tuple[Script, int]:
    script = Script()
    value = script.load(tensor)
    workers.run(device, session, script.program(keep=(value,)))
    return script, value


def held(workers: Workers, session: str, script: Script, value: int) -> bytes:
    return workers.values(workers.run(ONE, session, script.program(fetch=(value,))))[0]


def long_program() -> Program:
    script = Script()
    matrix = script.load(torch.randn(512, 512))
    for _ in range(3000):
        script.op("aten.mm.default", matrix, matrix)
    return script.program()


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def test_each_group_of_a_device_has_a_process_of_its_own(workers: Workers) -> None:
    before = workers.site.workers()
    assert len(before) == 1
    hold(workers, "ann", torch.ones(4))
    hold(workers, "ann's other", torch.ones(4))
    assert workers.site.workers() == before
    hold(workers, "bob", torch.ones(4))
    assert len(workers.site.workers() - before) == 1


def test_a_device_reports_the_memory_of_all_its_groups(workers: Workers) -> None:
    hold(workers, "ann", torch.ones(MIB // 4))
    script = Script()
    value = script.load(torch.randn(MIB // 2))
    memory = workers.run(ONE, "bob", script.program(keep=(value,))).memory
    assert memory.session_bytes == {"ann": MIB, "bob": 2 * MIB}
    assert memory.used_bytes == 3 * MIB
    workers.do(lambda: workers.launcher.copy(ONE, StoreState(1, "bob")))
    assert workers.next(ONE, CopyDone).memory.host_bytes == 2 * MIB
    workers.do(lambda: workers.launcher.copy(ONE, Close("ann")))
    assert workers.next(ONE, Closed).memory.session_bytes == {"bob": 2 * MIB}


def test_a_group_does_not_see_what_another_one_stored(workers: Workers) -> None:
    """Session names are the pool's; a mix-up of its own must find nothing."""
    script, value = hold(workers, "ann", torch.ones(4))
    workers.begin(ONE, "bob", script.program(fetch=(value,)))
    assert workers.next(ONE, SegmentFailed).error.type_name == "ValueLost"


def test_the_death_of_one_groups_worker_spares_the_cell_of_another(workers: Workers) -> None:
    program, _ = training(steps=150, size=256)
    expected = workers.values(workers.run(ONE, "bob", program))
    hold(workers, "ann", torch.ones(4))
    hold(workers, "ann's other", torch.ones(4))
    workers.begin(ONE, "bob", program)
    workers.next(ONE, SegmentStarted)
    workers.site.kill(ONE, "ann")
    workers.lost(ONE)
    assert workers.values(workers.next(ONE, SegmentDone)) == expected
    (lost,) = workers.heard.lost
    assert lost is not None
    assert lost.sessions == {"ann", "ann's other"}
    assert lost.memory.session_bytes.keys() <= {"bob"}


def test_a_dead_workers_group_continues_in_the_next_one(workers: Workers) -> None:
    script, value = hold(workers, "ann", torch.ones(4))
    other, kept = hold(workers, "bob", torch.ones(8))
    before = workers.launcher.holder(ONE, "ann")
    workers.site.kill(ONE, "ann")
    workers.lost(ONE)
    assert workers.launcher.holder(ONE, "ann") != before
    workers.begin(ONE, "ann", script.program(fetch=(value,)))
    assert workers.next(ONE, SegmentFailed).error.type_name == "ValueLost"
    assert held(workers, "bob", other, kept) == raw(torch.ones(8))
    assert workers.launcher.health(ONE).restarts == 1


def test_a_group_restores_on_a_device_what_its_dead_worker_parked_on_another(workers: Workers) -> None:
    tensor = torch.randn(MIB)
    script, value = hold(workers, "bob", tensor)
    hold(workers, "ann", torch.ones(4))
    workers.do(lambda: workers.launcher.copy(ONE, StoreState(1, "bob")))
    manifest = workers.next(ONE, CopyDone).manifest
    workers.do(lambda: workers.launcher.copy(ONE, Evict(2, "bob")))
    workers.next(ONE, CopyDone)
    assert manifest is not None
    workers.heard.kept = [manifest]
    workers.site.kill(ONE, "bob")
    workers.lost(ONE)
    workers.ready(OTHER)
    workers.do(lambda: workers.launcher.copy(OTHER, Restore(3, "bob", manifest=manifest)))
    workers.next(OTHER, CopyDone)
    done = workers.run(OTHER, "bob", script.program(fetch=(value,)))
    assert workers.values(done) == [raw(tensor)]


def test_a_group_cannot_restore_what_another_one_parked(workers: Workers) -> None:
    hold(workers, "ann", torch.randn(MIB))
    workers.do(lambda: workers.launcher.copy(ONE, StoreState(1, "ann")))
    manifest = workers.next(ONE, CopyDone).manifest
    order = Restore(2, "bob", manifest=manifest)
    workers.do(lambda: workers.launcher.copy(ONE, order))
    failed = workers.answer(ONE)
    assert "Permission denied" in getattr(failed, "reason", ""), failed


def test_a_worker_is_used_by_one_group_for_its_whole_life(workers: Workers) -> None:
    first = workers.site.workers()
    hold(workers, "ann", torch.ones(4))
    workers.do(lambda: workers.launcher.copy(ONE, Close("ann")))
    workers.next(ONE, Closed)
    hold(workers, "bob", torch.ones(4))
    assert len(workers.site.workers() - first) == 1


def test_the_device_computes_the_same_bits_for_every_group(workers: Workers) -> None:
    program, _ = training(steps=5, size=64)
    found = [workers.values(workers.run(ONE, session, program)) for session in ("ann", "bob")]
    assert found[0] == found[1]


def test_a_device_in_use_by_one_group_is_measured(workers: Workers) -> None:
    hold(workers, "ann", torch.ones(4))
    workers.do(lambda: workers.launcher.run(ONE, Calibrate()))
    assert workers.next(ONE, DeviceMeasured).curves.flops_per_s > 0


def test_every_worker_is_closed_in(workers: Workers) -> None:
    workers.start(OTHER)
    ready = workers.next(OTHER, WorkerReady)
    assert (ready.sandbox, ready.memory_bytes) == ("full", DEVICE_BYTES)


def taking(nbytes: int, ops: int = 1) -> Program:
    """Return a program that holds ``ops`` tensors of ``nbytes`` at once."""
    script = Script()
    value = script.load(torch.ones(nbytes // 4))
    made = [script.op("aten.neg.default", value) for _ in range(ops - 1)]
    return script.program(keep=(value, *made))


def test_groups_together_hold_no_more_than_their_device_has(workers: Workers) -> None:
    half = DEVICE_BYTES // 2
    workers.run(ONE, "ann", taking(half // 2, ops=2))
    workers.begin(ONE, "bob", taking(half, ops=2))  # one op of it does not fit
    failed = workers.next(ONE, SegmentFailed)
    assert failed.error.type_name == "DeviceMemoryError"
    assert "of the device's 64.0 MiB are in use" in failed.error.message
    assert failed.memory.session_bytes["ann"] == half
    workers.do(lambda: workers.launcher.copy(ONE, Close("bob")))
    workers.next(ONE, Closed)
    memory = workers.run(ONE, "bob", taking(half // 2, ops=2)).memory
    assert (memory.used_bytes, memory.peak_bytes) == (DEVICE_BYTES, DEVICE_BYTES)


def test_what_one_group_frees_another_may_use(workers: Workers) -> None:
    workers.run(ONE, "ann", taking(DEVICE_BYTES // 2))
    workers.run(ONE, "bob", taking(DEVICE_BYTES // 2))
    workers.do(lambda: workers.launcher.copy(ONE, Close("ann")))
    workers.next(ONE, Closed)
    assert workers.run(ONE, "bob", taking(DEVICE_BYTES // 4, ops=4)).memory.used_bytes == DEVICE_BYTES


def test_a_release_leaves_the_running_cell_of_another_group_its_memory(workers: Workers) -> None:
    _, value = hold(workers, "ann", torch.ones(4))
    script = Script()
    matrix = script.load(torch.randn(512, 512))
    for _ in range(400):
        script.op("aten.mm.default", matrix, matrix)
    large = script.load(torch.ones(DEVICE_BYTES // 16))
    made = [script.op("aten.neg.default", large) for _ in range(2)]
    workers.begin(ONE, "bob", script.program(keep=tuple(made)))
    workers.next(ONE, SegmentStarted)
    workers.do(lambda: workers.launcher.run(ONE, Release("ann", (value,))))
    assert workers.next(ONE, Released).memory.session_bytes["ann"] == 0
    assert workers.next(ONE, SegmentDone).memory.session_bytes["bob"] == DEVICE_BYTES // 2


def test_a_session_that_comes_back_right_after_a_drop_is_among_the_lost(workers: Workers) -> None:
    """Its cells would else wait for the dead worker for ever."""
    workers.ready(OTHER)
    hold(workers, "ann", torch.randn(MIB))
    workers.do(lambda: workers.launcher.copy(ONE, StoreState(1, "ann")))
    restore = Restore(2, "ann", manifest=workers.next(ONE, CopyDone).manifest)
    workers.do(lambda: workers.launcher.copy(OTHER, Drop("ann")))
    workers.do(lambda: workers.launcher.copy(OTHER, restore))
    workers.next(OTHER, Closed)
    workers.next(OTHER, CopyDone)
    workers.site.kill(OTHER, "ann")
    workers.lost(OTHER)
    (lost,) = workers.heard.lost
    assert lost is not None
    assert lost.sessions == {"ann"}


def test_a_session_is_restored_beside_the_running_cell_of_another_group(workers: Workers) -> None:
    tensor = torch.randn(MIB)
    script, value = hold(workers, "ann", tensor)
    for order in (StoreState(1, "ann"), Evict(2, "ann")):
        workers.do(lambda order=order: workers.launcher.copy(ONE, order))  # type: ignore[misc]
        workers.next(ONE, CopyDone)
    workers.begin(ONE, "bob", long_program(), "long")
    workers.next(ONE, SegmentStarted)
    restore = Restore(3, "ann", nbytes=tensor.nbytes)
    workers.do(lambda: workers.launcher.copy(ONE, restore))
    assert workers.next(ONE, CopyDone).memory.session_bytes["ann"] == tensor.nbytes
    workers.do(lambda: workers.launcher.cancel(ONE, "long"))
    workers.next(ONE, SegmentCancelled)
    assert held(workers, "ann", script, value) == raw(tensor)


def test_a_forked_worker_computes_the_bits_of_one_that_was_started_by_itself(tmp_path: Path) -> None:
    program, _ = training(steps=5, size=200)
    found = []
    for name, command in (("forked", None), ("started", WORKER_COMMAND)):
        (tmp_path / name).mkdir()
        made = Workers(LocalSite(tmp_path / name, command))
        made.start(ONE, threads=2)
        assert made.next(ONE, WorkerReady).threads == 2
        found.append(made.values(made.run(ONE, "ann", program)))
        made.leave()
    assert found[0] == found[1]
