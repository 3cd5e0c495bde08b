"""Preempted cells that resume later, on a live pool: what they compute, and how their users are notified."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from device_kind import KIND
from pool_kit import Client, http, new_user, rest
from programs import Script, contiguous
from real_pool import PoolUnderTest, kill_worker, wait_for
from torch import nn
from training import training

from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.errors import CancelFailed
from djinn_lab.protocol.messages import CloseSession, ReleaseValues, SegmentResult
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.srg.program import Program

pytestmark = pytest.mark.processes

MIB = 2**20
STEPS = 600


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A device that holds one large session, and a host that holds several."""
    with PoolUnderTest(tmp_path_factory.mktemp("one"), f"{KIND}:1", 64 * MIB, host_bytes=256 * MIB) as pool:
        yield pool


@pytest.fixture
def pool(one: PoolUnderTest) -> RuntimeInfo:
    return one.info


def preempt(info: RuntimeInfo, job: str, token: str | None = None) -> int:
    with http(info, token) as client:
        return client.post(f"/v1/jobs/{job}/preempt").status_code


def weights(result: SegmentResult) -> list[bytes]:
    assert result.outcome == "done", result.error
    found = [tensor.data for tensor in result.fetched]
    assert all(found)
    return [data for data in found if data is not None]


def undisturbed(info: RuntimeInfo, program: Program) -> SegmentResult:
    with Client(info) as client:
        return client.run(program)


def test_brief_cells_run_between_two_ops_of_a_long_one(pool: RuntimeInfo) -> None:
    program, _ = training(STEPS, size=128, ballast_bytes=4 * MIB)
    expected = undisturbed(pool, program)
    script = Script()
    brief = script.program(fetch=(script.op("aten.neg.default", script.load(torch.ones(3))),))
    for _ in range(3):
        undisturbed(pool, brief)  # its run time is known from then on
    with ExitStack() as stack:
        ann, *others = [stack.enter_context(Client(pool)) for _ in range(5)]
        job = ann.submit(program)
        ann.until(job, "RUNNING")
        for _ in range(3):
            waiting = [(client, client.submit(brief)) for client in others]
            assert [client.result(sent).outcome for client, sent in waiting] == ["done"] * len(others)
        result = ann.result(job)
        assert all(update.state != "PREEMPTED" for update in ann.updates)
    assert weights(result) == weights(expected)
    assert result.rng_state == expected.rng_state
    assert result.executed == len(program.nodes)
    assert sum(result.stages.values()) == pytest.approx(result.pool_s, rel=0.01)


def test_training_preempted_often_ends_with_the_same_weights(pool: RuntimeInfo) -> None:
    program, _ = training(STEPS, size=128, ballast_bytes=4 * MIB)
    expected = undisturbed(pool, program)
    short, _ = training(100, size=128, seed=1)  # too long to run between two ops of the other
    with Client(pool) as ann, Client(pool) as bob:
        job = ann.submit(program)
        for _ in range(5):
            if not ann.runs_or_ended(job):
                break  # on a busy machine this test may be too slow for it
            waiting = bob.submit(short)
            wait_for(lambda name=waiting: any(one.job == name for one in rest(pool).jobs(limit=20)))  # type: ignore[misc]
            assert preempt(pool, job) in (200, 409)  # the queue itself may have been faster
            assert bob.result(waiting).outcome == "done"
        result = ann.result(job)
        assert any(update.state == "PREEMPTED" for update in ann.updates)
    assert weights(result) == weights(expected)
    assert result.rng_state == expected.rng_state
    assert result.executed == expected.executed == len(program.nodes)
    assert result.stages["preempted"] > 0
    assert sum(result.stages.values()) == pytest.approx(result.pool_s, rel=0.01)
    wait_for(lambda: rest(pool).job(job).finished)
    view = rest(pool).job(job)
    assert view.started_at is not None
    assert view.finished_at is not None
    elapsed_s = view.finished_at - view.started_at
    assert view.run_s(view.finished_at) == pytest.approx(elapsed_s - view.stages["preempted"], rel=0.1)
    (used,) = [row for row in rest(pool).usage() if row.job == job]
    assert view.run_s(view.finished_at) == pytest.approx(used.run_s)
    events = [line.event for line in rest(pool).job(job).events]
    assert "SegmentPreempted" in events


def test_why_says_for_whom_a_cell_was_preempted(pool: RuntimeInfo) -> None:
    program, _ = training(4 * STEPS, size=128)
    urgent, _ = training(STEPS, size=128, seed=1)
    with Client(pool) as ann, Client(pool) as bob:
        job = ann.submit(program)
        ann.until(job, "RUNNING")
        other = bob.submit(urgent, priority="CRITICAL")
        ann.until(job, "PREEMPTED")
        view, listed = rest(pool).job(job), rest(pool).queue().find(job)
        sentence = rest(pool).why(job).sentence
        assert view.running_since is None
        assert view.started_at is not None
        assert listed is not None
        assert listed.since > view.started_at  # when it was preempted
        assert listed.unpredicted or listed.expected_at
        assert re.match(f"Preempted: for .*{other[:4]}", sentence), sentence


def test_training_goes_from_device_to_device_and_ends_as_if_it_had_not(two: PoolUnderTest) -> None:
    """An urgent cell takes its device for longer than a move takes, and another device is idle."""
    program, _ = training(2 * STEPS, size=128, ballast_bytes=4 * MIB)
    other, _ = training(STEPS, seed=1, ballast_bytes=48 * MIB)  # takes much longer than a move
    expected = undisturbed(two.info, program)
    with Client(two.info) as ann, Client(two.info) as bob:
        job = ann.submit(program)
        first = ann.until(job, "RUNNING").device
        assert first is not None
        bob.submit(other, priority="CRITICAL", target=first)
        ann.until(job, "PREEMPTED")
        assert ann.until(job, "RUNNING").device != first
        result = ann.result(job)
    assert weights(result) == weights(expected)
    assert result.rng_state == expected.rng_state


def test_a_parked_cell_outlives_the_process_that_parked_it(one: PoolUnderTest) -> None:
    """The device holds one of the two sessions, so the preempted one is parked on the host."""
    program, _ = training(2 * STEPS, size=128, ballast_bytes=40 * MIB)  # longer than the other is on its way
    other, _ = training(STEPS // 2, ballast_bytes=40 * MIB)
    expected = undisturbed(one.info, program)
    with Client(one.info) as ann, Client(one.info) as bob:
        job = ann.submit(program)
        ann.until(job, "RUNNING")
        wait_for(lambda: one.rest.job(job).ops_done > 0)
        urgent = bob.submit(other, priority="CRITICAL")
        bob.until(urgent, "RUNNING")
        assert tier(one, ann.session) == "host"
        kill_worker(one)
        assert "the cell ran again" in bob.result(urgent).recovery
        result = ann.result(job)
    assert weights(result) == weights(expected)


def test_waits_of_a_preempted_cell_add_up_while_it_is_under_way(one: PoolUnderTest) -> None:
    program, _ = training(2 * STEPS, size=128, ballast_bytes=4 * MIB)
    with Client(one.info) as ann, Client(one.info) as bob:
        job = ann.submit(program)
        ann.until(job, "RUNNING")
        wait_for(lambda: one.rest.job(job).ops_done > 0)
        bob.submit(program, priority="CRITICAL")
        ann.until(job, "PREEMPTED")
        wait_for(lambda: one.rest.job(job).preempted_s > 0.2)
        view = one.rest.job(job)
        ran_s, waited_s = view.run_s(0.0), view.waited_s(0.0)
        assert ran_s is not None
        assert waited_s is not None
        for_s = max(event.at for event in view.events) - view.submitted_at
        assert waited_s + ran_s + view.preempted_s >= 0.9 * for_s
        [row] = [row for row in one.rest.queue().waiting if row.job == job]
        assert row.waited_s >= 0.9 * view.preempted_s
        one.rest.cancel(job)
        ann.result(job)
        for client in (ann, bob):
            client.send(CloseSession())


def test_no_end_is_predicted_of_a_cell_of_which_more_may_come(one: PoolUnderTest) -> None:
    program, _ = training(2 * STEPS, size=128, ballast_bytes=4 * MIB)
    with Client(one.info) as ann:
        job = ann.submit(program, final=False)
        ann.until(job, "RUNNING")
        [row] = one.rest.queue().running
        assert (row.ends_at, row.unpredicted) == (None, "unknown: more of the cell may come")
        one.rest.cancel(job)
        ann.result(job)
        ann.send(CloseSession())


def test_a_cell_that_lay_in_a_killed_process_only_is_made_again(tmp_path: Path) -> None:
    """The pool has no host memory to store the cell's state in: its ops are replayed to where it stopped."""
    program, _ = training(2 * STEPS, size=128, ballast_bytes=4 * MIB)
    with PoolUnderTest(tmp_path, f"{KIND}:1", 64 * MIB, host_bytes=0) as pool:
        with Client(pool.info) as ann, Client(pool.info) as bob:
            job = ann.submit(program)
            ann.until(job, "RUNNING")
            wait_for(lambda: pool.rest.job(job).ops_done > 0)
            urgent = bob.submit(program, priority="CRITICAL")
            bob.until(urgent, "RUNNING")
            kill_worker(pool)
            again, other = ann.result(job), bob.result(urgent)
            assert (again.outcome, other.outcome) == ("done", "done")
            assert weights(again) == weights(other)
            assert "by replay of" in again.recovery
            assert ann.run(training(2)[0]).outcome == "done"


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_preempted_cell_cancelled_or_closed_frees_its_memory(pool: RuntimeInfo, how: str) -> None:
    program, _ = training(3 * STEPS, size=128, ballast_bytes=20 * MIB)  # still there when the other has come
    other, _ = training(STEPS, ballast_bytes=8 * MIB)
    with Client(pool) as bob:
        with Client(pool) as ann:
            job = ann.submit(program)
            ann.until(job, "RUNNING")
            wait_for(lambda: rest(pool).job(job).ops_done > 0)
            urgent = bob.submit(other, priority="CRITICAL")
            bob.until(urgent, "RUNNING")
            assert held_bytes(pool, ann.session) > 20 * MIB
            if how == "cancel":
                assert rest(pool).cancel(job).state == "CANCELLED"
                result = ann.result(job)
                assert (result.outcome, result.executed) == ("cancelled", rest(pool).job(job).ops_done)
                assert bob.result(urgent).outcome == "done"
                wait_for(lambda: held_bytes(pool, ann.session) < 2**20)
            session = ann.session
            ann.send(CloseSession())
            wait_for(lambda: all(row.session != session for row in rest(pool).memory().sessions))
        if how == "close":
            assert bob.result(urgent).outcome == "done"
    wait_for(lambda: rest(pool).memory().devices[0].used_bytes < 2**20)


def test_only_an_operator_or_the_owner_can_preempt_a_cell(pool: RuntimeInfo) -> None:
    _, owner = new_user(pool)
    _, stranger = new_user(pool)
    _, operator = new_user(pool, "operator")
    program, _ = training(STEPS, size=128, ballast_bytes=4 * MIB)
    with Client(pool, owner) as ann:
        job = ann.submit(program)
        ann.until(job, "RUNNING")
        assert preempt(pool, job, stranger) == 403
        assert preempt(pool, job, owner) == 200
        ann.until(job, "RUNNING")
        assert preempt(pool, job, operator) == 200
        assert ann.result(job).outcome == "done"
        assert preempt(pool, job, owner) == 409


def test_a_parked_session_that_comes_back_finds_its_values(one: PoolUnderTest) -> None:
    """The restore begins when the client connects again, before it submits a cell."""
    script = Script()
    kept = script.op("aten.full.default", meta=contiguous(10 * MIB), args=[[10 * MIB], 3.0])
    with Client(one.info) as bob:
        with Client(one.info) as ann:
            assert ann.run(script.program(keep=(kept,))).outcome == "done"
        assert bob.run(training(2, ballast_bytes=40 * MIB)[0]).outcome == "done"
        assert tier(one, ann.session) == "host"
        with Client(one.info, session=ann.session) as again:
            assert again.welcome.resumed
            total = script.op("aten.sum.default", kept, meta=contiguous())
            found = again.result(again.submit(script.program(fetch=(total,))))
    assert (found.outcome, found.fetched[0].data) == ("done", torch.tensor(30.0 * MIB).numpy().tobytes())


@pytest.fixture(scope="module")
def slow_links(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """A pool of two devices with a slow link between them."""
    directory = tmp_path_factory.mktemp("slow")
    with PoolUnderTest(directory, f"{KIND}:2", 64 * MIB, link_bytes_per_s=8 * MIB) as pool:
        yield pool


def test_what_is_released_while_its_device_is_busy_does_not_come_along(slow_links: PoolUnderTest) -> None:
    """The release waits behind another cell when the state is copied, and is sent to the other device."""
    script = Script()
    kept = script.op("aten.ones.default", meta=contiguous(1000), args=[[1000]])
    empty = script.op("aten.zeros.default", meta=contiguous(MIB), args=[[MIB]])
    gone = script.op("aten.rand_like.default", empty)
    busy, _ = training(4 * STEPS, ballast_bytes=40 * MIB)  # slow, and soon made
    pool = slow_links
    with Client(pool.info) as ann, Client(pool.info) as bob:
        assert ann.run(script.program(keep=(kept, gone)), target=f"{KIND}:0").outcome == "done"
        job = bob.submit(busy, target=f"{KIND}:0")
        bob.until(job, "RUNNING")
        ann.send(ReleaseValues([gone]))
        script.write("aten.add_.Tensor", kept, scalars=(1,))
        moved = ann.run(script.program(fetch=(kept,)), target=f"{KIND}:1")
        assert (moved.outcome, moved.device) == ("done", f"{KIND}:1")
        assert moved.fetched[0].data == torch.full((1000,), 2.0).numpy().tobytes()
        assert held_bytes(pool.info, ann.session) == 4000
        stop(pool, bob, job)


def test_what_is_released_while_it_is_brought_over_is_dropped_there(slow_links: PoolUnderTest) -> None:
    script = Script()
    kept = script.op("aten.ones.default", meta=contiguous(1000), args=[[1000]])
    empty = script.op("aten.zeros.default", meta=contiguous(MIB), args=[[MIB]])
    gone = script.op("aten.rand_like.default", empty)
    busy, _ = training(4 * STEPS, ballast_bytes=40 * MIB)  # slow, and soon made
    pool = slow_links
    with Client(pool.info) as ann, Client(pool.info) as bob:
        assert ann.run(script.program(keep=(kept, gone)), target=f"{KIND}:0").outcome == "done"
        busy_job = bob.submit(busy, target=f"{KIND}:0")
        bob.until(busy_job, "RUNNING")
        script.write("aten.add_.Tensor", kept, scalars=(1,))
        moved = ann.submit(script.program(fetch=(kept,)), target=f"{KIND}:1")
        wait_for(lambda: moving(pool, ann.session) == (f"{KIND}:1", "restore"))
        ann.send(ReleaseValues([gone]))
        assert ann.result(moved).outcome == "done"
        wait_for(lambda: held_bytes(pool.info, ann.session) == 4000)
        stop(pool, bob, busy_job)


def stop(pool: PoolUnderTest, client: Client, job: str) -> None:
    """Cancel a job, unless it has ended already on a fast machine."""
    with suppress(CancelFailed):
        pool.rest.cancel(job)
    assert client.result(job).outcome in ("cancelled", "done")


def moving(pool: PoolUnderTest, session: str) -> tuple[str, str]:
    rows = pool.rest.memory().sessions
    return next((row.device, row.moving) for row in rows if row.session == session)


def tier(pool: PoolUnderTest, session: str) -> str:
    rows = pool.rest.memory().sessions
    return str(next(row.tier for row in rows if row.session == session))


def held_bytes(info: RuntimeInfo, session: str) -> int:
    rows = rest(info).memory().sessions
    return next(int(row.total_bytes) for row in rows if row.session == session)


def trained(session: Session | None) -> list[bytes]:
    """Train a model on the pool, or in plain torch without a session, and return its parameters."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(512, 512), nn.Dropout(0.3), nn.ReLU(), nn.Linear(512, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, wanted = torch.randn(1024, 512), torch.randn(1024, 64)
    with session.capture() if session is not None else nullcontext():
        for _ in range(50):
            optimizer.zero_grad()
            loss = (model(inputs) - wanted).square().mean()
            loss.backward()
            optimizer.step()
    return [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]


def test_session_training_preempted_all_the_time_equals_plain_torch(pool: RuntimeInfo) -> None:
    """Whenever a part of a cell runs, it is preempted."""
    expected = trained(None)
    over = Event()

    def disturb() -> None:
        while not over.wait(0.01):
            for job in rest(pool).jobs(state="RUNNING", limit=5):
                preempt(pool, job.job)

    session = Session(pool.url, pool.token, default_profile(), "a test")
    disturber = Thread(target=disturb)
    disturber.start()
    try:
        found = trained(session)
    finally:
        over.set()
        disturber.join()
        own = [job for job in rest(pool).jobs(limit=20) if job.session == session.welcome.session]
        session.close()
    assert found == expected
    stops = [line for job in own for line in rest(pool).job(job.job).events]
    count = sum(line.event == "SegmentPreempted" for line in stops)
    assert count >= 3
