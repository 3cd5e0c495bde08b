"""What every launcher does, with real workers and through its interface alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from launcher_kit import DEVICE_BYTES, DISK_BYTES, HOST_BYTES, MIB, SITES, Site, Workers
from programs import Script
from real_pool import wait_for
from training import training

from djinn_lab.pool.devices.launcher import GroupLost
from djinn_lab.protocol.worker import (
    Calibrate,
    Close,
    Closed,
    CopyDone,
    CopyOrder,
    Demote,
    DeviceMeasured,
    Drop,
    Evict,
    Expedite,
    Forget,
    Restore,
    Resume,
    RunPreempted,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    SegmentStarted,
    StoreState,
    WorkerMemory,
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
def fresh(site: Site) -> Iterator[Workers]:
    """A launcher without started workers, used by no other test."""
    made = Workers(site)
    yield made
    made.leave()


@pytest.fixture(scope="module", params=SITES)
def shared(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with SITES[request.param]() as site:
        made = Workers(site)
        made.ready(ONE, OTHER)
        yield made
        assert not made.heard.deaths
        made.leave()


@pytest.fixture
def workers(shared: Workers) -> Iterator[Workers]:
    """A launcher with two workers that are ready and have no sessions."""
    yield shared
    for device in (ONE, OTHER):
        for session in ("ann", "bob"):
            shared.do(lambda d=device, s=session: shared.launcher.copy(d, Close(s)))  # type: ignore[misc]
            while shared.next(device, Closed).session != session:
                continue


def copy(workers: Workers, device: str, order: CopyOrder) -> CopyDone:
    workers.do(lambda: workers.launcher.copy(device, order))
    return workers.next(device, CopyDone)


def begin(workers: Workers, device: str, program: Program, resume: Resume | None = None) -> None:
    """Run a program of ann's, and return once it has started."""
    workers.begin(device, "ann", program, resume=resume)
    workers.next(device, SegmentStarted)


def preempt(workers: Workers, device: str, program: Program) -> RunPreempted:
    """Run a program of ann's, and preempt it after at least one op."""
    begin(workers, device, program)
    while True:
        workers.do(lambda: workers.launcher.preempt(device, "job", 0))
        stopped = workers.next(device, RunPreempted)
        if stopped.executed:
            return stopped
        begin(workers, device, program, Resume(0, stopped.rng_state))


def long_program() -> Program:
    """Return a program that runs short ops for many seconds."""
    script = Script()
    matrix = script.load(torch.randn(512, 512))
    for _ in range(3000):
        script.op("aten.mm.default", matrix, matrix)
    return script.program()


def loaded(workers: Workers, device: str, tensor: torch.Tensor) -> tuple[Script, int]:
    """Load a tensor into a session of ann's, and return its value."""
    script = Script()
    value = script.load(tensor)
    workers.run(device, "ann", script.program(keep=(value,)))
    return script, value


def held(workers: Workers, device: str, script: Script, value: int) -> bytes:
    return workers.values(workers.run(device, "ann", script.program(fetch=(value,))))[0]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def test_every_spawned_device_gets_a_worker_with_the_limits_of_its_plan(fresh: Workers) -> None:
    fresh.start(ONE, OTHER)
    for device in (ONE, OTHER):
        ready = fresh.next(device, WorkerReady)
        assert (ready.device, ready.kind, ready.threads) == (device, "cpu", 1)
        assert (ready.memory_bytes, ready.host_bytes, ready.disk_bytes) == (
            DEVICE_BYTES,
            HOST_BYTES,
            DISK_BYTES,
        )
        health = fresh.launcher.health(device)
        assert (health.alive, health.restarts) == (True, 0)
    assert len(fresh.site.workers()) == 2


def test_a_segment_takes_blobs_by_name_and_gives_results_by_name(workers: Workers) -> None:
    weight, few = torch.randn(MIB // 4), torch.randn(8)
    script = Script()
    large, small = script.load(weight, "weights"), script.load(few)
    twice = script.op("aten.add.Tensor", large, large)
    blobs = {"weights": workers.site.put(weight)}
    done = workers.run(ONE, "ann", script.program(fetch=(twice, small)), blobs=blobs)
    assert [one.blob is None for one in done.fetched] == [False, True]
    assert workers.values(done) == [raw(weight + weight), raw(few)]
    assert len(done.node_end_s) == 1


def test_segments_run_in_the_order_of_their_orders_with_one_answer_each(workers: Workers) -> None:
    script = Script()
    value = script.load(torch.zeros(4))
    workers.begin(ONE, "ann", script.program(keep=(value,)), "load")
    for number in range(20):
        script.write("aten.add_.Tensor", value, scalars=(1.0,))
        workers.begin(ONE, "ann", script.program(keep=(value,), fetch=(value,)), f"job {number}")
    assert workers.next(ONE, SegmentDone).job == "load"
    for number in range(20):
        done = workers.next(ONE, SegmentDone)
        assert done.job == f"job {number}"
        assert workers.values(done) == [raw(torch.full((4,), number + 1.0))]


def test_a_failing_op_is_an_answer_and_the_worker_lives_on(workers: Workers) -> None:
    script = Script()
    value = script.source((4,))
    workers.begin(ONE, "ann", script.program(fetch=(value,)))
    assert workers.next(ONE, SegmentFailed).error.type_name == "ValueLost"
    loaded(workers, ONE, torch.ones(1))


def test_values_exported_by_one_device_are_imported_by_another(workers: Workers) -> None:
    tensor = torch.randn(MIB // 4)
    script, value = loaded(workers, ONE, tensor)
    script.op("aten.neg.default", value)
    exported = workers.run(ONE, "ann", script.program(), exports=(value,)).exported
    done = workers.run(OTHER, "ann", script.program(fetch=(value,)), imports=exported)
    assert workers.values(done) == [raw(tensor)]
    assert [workers.site.take(one.blob) for one in exported if one.blob is not None] == [raw(tensor)]


def test_a_device_is_measured_on_demand(workers: Workers) -> None:
    workers.do(lambda: workers.launcher.run(ONE, Calibrate()))
    measured = workers.next(ONE, DeviceMeasured)
    assert measured.curves.flops_per_s > 0


def test_a_cancel_stops_a_segment_between_ops(workers: Workers) -> None:
    program = long_program()
    begin(workers, ONE, program)
    workers.do(lambda: workers.launcher.cancel(ONE, "job"))
    assert workers.next(ONE, SegmentCancelled).executed < len(program.nodes)
    loaded(workers, ONE, torch.ones(1))


def test_a_cancel_and_a_preempt_that_come_too_late_hit_nothing(workers: Workers) -> None:
    script, value = loaded(workers, ONE, torch.ones(4))
    workers.do(lambda: workers.launcher.cancel(ONE, "job"))
    workers.do(lambda: workers.launcher.preempt(ONE, "job", 0))
    done = workers.run(ONE, "ann", script.program(fetch=(value,)), segment=1)
    assert (done.segment, workers.values(done)) == (1, [raw(torch.ones(4))])


@pytest.mark.parametrize("target", [ONE, OTHER], ids=["here", "elsewhere"])
def test_a_preempted_segment_resumes_bit_for_bit(workers: Workers, target: str) -> None:
    program, _ = training(steps=150, size=256)
    expected = workers.run(ONE, "bob", program)
    stopped = preempt(workers, ONE, program)
    assert 0 < stopped.executed < stopped.ops_total
    manifest = copy(workers, ONE, StoreState(1, "ann")).manifest
    copy(workers, ONE, Evict(2, "ann"))
    copy(workers, target, Restore(3, "ann", manifest=None if target == ONE else manifest))
    begin(workers, target, program, Resume(stopped.executed, stopped.rng_state))
    found = workers.next(target, SegmentDone)
    assert workers.values(found) == workers.values(expected)
    assert found.rng_state == expected.rng_state
    assert len(found.node_end_s) == len(program.nodes) - stopped.executed


def test_a_session_goes_to_host_and_disk_and_comes_back_as_it_was(workers: Workers) -> None:
    tensor = torch.randn(MIB)
    script, value = loaded(workers, ONE, tensor)
    orders: list[StoreState | Evict | Demote | Restore | Forget] = [
        StoreState(1, "ann"),
        Evict(2, "ann"),
        Demote(3, "ann"),
        Restore(4, "ann"),
        Forget(5, "ann"),
    ]
    for order in orders:
        done = copy(workers, ONE, order)
        assert (done.transfer, done.session) == (order.transfer, "ann")
        on_device = done.memory.session_bytes.get("ann", 0)
        assert on_device == (0 if isinstance(order, Evict | Demote) else tensor.nbytes)
    assert (done.memory.host_bytes, done.memory.disk_bytes) == (0, 0)
    assert held(workers, ONE, script, value) == raw(tensor)


def test_copies_do_not_wait_for_the_segment_that_runs(workers: Workers) -> None:
    tensor = torch.randn(MIB)
    script, value = loaded(workers, ONE, tensor)
    workers.begin(ONE, "bob", long_program(), "long")
    workers.next(ONE, SegmentStarted)
    copy(workers, ONE, StoreState(1, "ann"))
    workers.do(lambda: workers.launcher.copy(ONE, Expedite(1)))
    copy(workers, ONE, Evict(2, "ann"))
    copy(workers, ONE, Restore(3, "ann", expedited=True))
    workers.do(lambda: workers.launcher.cancel(ONE, "long"))
    workers.next(ONE, SegmentCancelled)
    assert held(workers, ONE, script, value) == raw(tensor)


def test_no_copy_tells_of_a_run_before_its_answer_does(workers: Workers) -> None:
    """A pool that is killed between the two would have the state after a run that it takes as not run."""
    script, value = loaded(workers, ONE, torch.zeros(4))
    script.op("aten.add_.Scalar", value, scalars=(1,))
    added = script.program(keep=(value,))
    for serial in range(1, 101):
        workers.begin(ONE, "ann", added, "job", serial=serial, announces_start=False)
        workers.do(lambda number=serial: workers.launcher.copy(ONE, StoreState(number, "ann")))  # type: ignore[misc]
        first, second = workers.answer(ONE), workers.answer(ONE)
        assert isinstance(first, SegmentDone) or (isinstance(first, CopyDone) and first.serial < serial)
        assert type(first) is not type(second)


def test_a_closed_session_leaves_nothing_on_its_device(workers: Workers) -> None:
    tensor = torch.randn(MIB)
    loaded(workers, ONE, tensor)
    copy(workers, ONE, StoreState(1, "ann"))
    workers.do(lambda: workers.launcher.copy(ONE, Close("ann")))
    memory = workers.next(ONE, Closed).memory
    assert "ann" not in memory.session_bytes
    assert (memory.used_bytes, memory.host_bytes) == (0, 0)


def test_what_is_parked_here_is_dropped_once_another_device_has_it(workers: Workers) -> None:
    tensor = torch.randn(MIB)
    script, value = loaded(workers, ONE, tensor)
    manifest = copy(workers, ONE, StoreState(1, "ann")).manifest
    copy(workers, ONE, Evict(2, "ann"))
    copy(workers, OTHER, Restore(3, "ann", manifest=manifest))
    workers.do(lambda: workers.launcher.copy(ONE, Drop("ann")))
    assert workers.next(ONE, Closed).memory.host_bytes == 0
    assert held(workers, OTHER, script, value) == raw(tensor)


def test_a_killed_worker_is_lost_once_and_another_takes_its_place(fresh: Workers) -> None:
    fresh.ready(ONE)
    script, value = loaded(fresh, ONE, torch.ones(4))
    fresh.begin(ONE, "bob", long_program())
    fresh.next(ONE, SegmentStarted)
    fresh.site.kill(ONE)
    fresh.lost(ONE)
    fresh.do(lambda: fresh.launcher.cancel(ONE, "job"))
    fresh.begin(ONE, "ann", script.program(fetch=(value,)), "to the next worker")
    failed = fresh.next(ONE, SegmentFailed)
    assert (failed.job, failed.error.type_name) == ("to the next worker", "ValueLost")
    health = fresh.launcher.health(ONE)
    assert (health.alive, health.restarts) == (True, 1)
    assert [device for device, _ in fresh.heard.deaths] == [ONE]
    assert fresh.heard.lost == [GroupLost(frozenset({"ann", "bob"}), WorkerMemory(0, 0, {}))]
    assert fresh.heard.failures == []
    assert len(fresh.site.workers()) == 1


@pytest.mark.parametrize("again", [False, True], ids=["for good", "and used again"])
def test_a_closed_session_is_its_workers_until_it_is_closed(fresh: Workers, again: bool) -> None:
    """Its cell may be running, and a session whose values were lost is closed and runs on."""
    fresh.ready(ONE)
    fresh.begin(ONE, "ann", long_program())
    fresh.next(ONE, SegmentStarted)
    fresh.do(lambda: fresh.launcher.copy(ONE, Close("ann")))
    if again:
        fresh.do(lambda: fresh.launcher.cancel(ONE, "job"))
        fresh.begin(ONE, "ann", long_program(), "after the close")
        fresh.next(ONE, Closed)
        fresh.next(ONE, SegmentStarted)
    fresh.site.kill(ONE)
    fresh.lost(ONE)
    assert [lost.sessions for lost in fresh.heard.lost if lost is not None] == [{"ann"}]


def test_a_worker_that_does_nothing_is_silent_until_it_continues(fresh: Workers) -> None:
    fresh.ready(ONE, OTHER)
    fresh.site.pause(ONE)
    try:
        fresh.until(lambda: fresh.heard.answering.get(ONE) is False or None)
        assert not fresh.do(lambda: fresh.launcher.health(ONE)).answers
        loaded(fresh, OTHER, torch.ones(1))
    finally:
        fresh.site.unpause(ONE)
    fresh.until(lambda: fresh.heard.answering[ONE] or None)
    assert fresh.heard.answering == {ONE: True}
    assert not fresh.heard.deaths
    loaded(fresh, ONE, torch.ones(1))


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_what_a_dead_worker_parked_is_kept_while_a_manifest_names_it(fresh: Workers, tier: str) -> None:
    fresh.ready(ONE, OTHER)
    others = fresh.site.parked()
    tensor = torch.randn(MIB)
    script, value = loaded(fresh, ONE, tensor)
    manifest = copy(fresh, ONE, StoreState(1, "ann")).manifest
    copy(fresh, ONE, Evict(2, "ann"))
    if tier == "disk":
        manifest = copy(fresh, ONE, Demote(3, "ann")).manifest
    assert manifest is not None
    fresh.heard.kept = [manifest]
    fresh.site.kill(ONE)
    fresh.lost(ONE)
    copy(fresh, OTHER, Restore(4, "ann", manifest=manifest))
    assert held(fresh, OTHER, script, value) == raw(tensor)
    before = fresh.site.parked()
    fresh.heard.kept = []
    copy(fresh, OTHER, StoreState(5, "ann"))
    wait_for(lambda: len(before - fresh.site.parked()) == fresh.site.files_of_a_move)
    assert tier == "disk" or (before - fresh.site.parked()) & others
    assert held(fresh, OTHER, script, value) == raw(tensor)


def test_a_worker_that_never_becomes_ready_is_a_failure_and_no_loss(fresh: Workers) -> None:
    fresh.start(ONE, threads=0)  # torch takes none
    device, how = fresh.until(lambda: fresh.heard.failures[0] if fresh.heard.failures else None)
    assert device == ONE
    assert how
    assert fresh.heard.deaths == []
    assert ONE not in fresh.heard.said


@pytest.mark.parametrize("at_once", [False, True])
def test_close_leaves_nothing_but_parked_sessions_where_they_are_left(fresh: Workers, at_once: bool) -> None:
    fresh.ready(ONE, OTHER)
    loaded(fresh, ONE, torch.randn(MIB))
    copy(fresh, ONE, StoreState(1, "ann"))
    copy(fresh, ONE, Evict(2, "ann"))
    copy(fresh, ONE, Demote(3, "ann"))
    fresh.begin(OTHER, "bob", long_program())
    fresh.next(OTHER, SegmentStarted)
    assert fresh.site.parked()
    fresh.close(at_once)
    assert fresh.site.processes() == set()
    assert bool(fresh.site.parked()) == at_once
    assert not fresh.launcher.health(ONE).alive
    assert fresh.heard.deaths == []
    fresh.begin(ONE, "ann", Script().program())
    fresh.close()
