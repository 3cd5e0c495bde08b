"""Once all disturbances stop, every cell ends, whatever happened before."""

from __future__ import annotations

from functools import partial

import pytest
from sampled import sampled
from simulated_pool import SimulatedPool

from djinn_lab.jobs import (
    CancelRequested,
    DeviceAdded,
    DeviceCordoned,
    DeviceDescribed,
    DeviceLost,
    EndSegment,
    Event,
    IllegalEvent,
    JobState,
    MemoryGranted,
    MoveRefused,
    Notify,
    PlaceSegment,
    PolicyChanged,
    PreemptRequested,
    SegmentFinished,
    SegmentPreempted,
    SegmentSubmitted,
    SessionClosed,
    SessionDetached,
    SharesChanged,
    Terms,
)
from djinn_lab.jobs.conditions import jobs_in
from djinn_lab.jobs.decision import POLICIES, Outlook, sentence
from djinn_lab.jobs.decision.state.cluster import Cluster
from djinn_lab.jobs.fairness import Limits, ShareTree
from djinn_lab.jobs.machine.invariants import check_indexes
from djinn_lab.jobs.machine.notifications import POSITIONS_SENT_MAX
from djinn_lab.jobs.machine.queue import JobQueue
from djinn_lab.jobs.machine.tables import FINISHED_JOBS_MAX

DISTURBED_S = 60.0
BOUND_S = 20_000.0
PREEMPTIONS_MAX = 40
MOVES_MAX = 6
"""Moves of a session without a run in between."""


def disturb(pool: SimulatedPool) -> None:
    """Do one random thing that users, operators or failures do to a pool."""
    chance, now_s = pool.random, pool.now_s
    device, session = chance.choice(pool.devices), chance.choice(list(pool.users))
    job = chance.choice(pool.jobs) if pool.jobs else "none"
    account = chance.choice(["", "user0", "user1", "user2"])
    limits = chance.choice(
        (
            Limits(),
            Limits(devices_max=1.0),
            Limits(devices_soft=1.0),
            Limits(device_s_max=3.0),
            Limits(queued_max=2),
        )
    )
    cordoned = chance.random() < 0.6
    events: list[Event] = [
        DeviceCordoned(now_s, device, cordoned, drain=chance.random() < 0.5),
        DeviceCordoned(now_s, device, cordoned, drain=chance.random() < 0.5),
        SharesChanged(now_s, account, weight=chance.choice((1.0, 5.0)), limits=limits),
        PolicyChanged(now_s, chance.choice([*POLICIES, "default", "default", "default"])),
        CancelRequested(now_s, job, "by a test"),
        PreemptRequested(now_s, job, "by a test"),
        SessionClosed(now_s, session),
        SessionDetached(now_s, session),
    ]
    if chance.random() < 0.3:
        lose(pool, device)
    elif chance.random() < 0.5:
        pool.submit(session, target=chance.random() < 0.1)
    else:
        event = chance.choice(events)
        pool.handle(event)
        if isinstance(event, SessionClosed):
            pool.forget({session})
            pool.state_at.pop(session, None)


def lose(pool: SimulatedPool, device: str) -> None:
    if next(view.alive for view in pool.queue.snapshot().devices if view.device == device):
        pool.forget({s for s, at in pool.bound_at.items() if at == device})
        pool.state_at = {s: at for s, at in pool.state_at.items() if at != device}
        run = pool.runs.pop(device, None)  # the run is not charged, unless the job ends with it
        lost = None if run is None else pool.queue.job(run[0])
        if run is not None and lost is not None and (lost.cancelling or lost.losses):
            pool.runs[device] = run
        assert pool.handle(DeviceLost(pool.now_s, device, "killed"))
        pool.at(pool.random.choice((0.5, 10.0, 200.0)), partial(add_again, pool, device))


def add_again(pool: SimulatedPool, device: str) -> None:
    pool.handle(DeviceAdded(pool.now_s, device, 1 << 30, link_bytes_per_s=1e9))


def calm(pool: SimulatedPool, keep_closed: bool) -> None:
    """Uncordon all devices, lift all limits and set the default policy. ``keep_closed``: except ``cpu:1``."""
    for device in pool.devices:
        pool.handle(DeviceCordoned(pool.now_s, device, keep_closed and device == "cpu:1", drain=True))
    for account in ("", "user0", "user1", "user2"):
        pool.handle(SharesChanged(pool.now_s, account, limits=Limits()))
    pool.handle(PolicyChanged(pool.now_s, "default"))


def look(pool: SimulatedPool) -> None:
    queue = pool.queue
    check_indexes(queue._tables)
    for job in pool.jobs:
        if queue.job(job) is not None:
            assert queue.explain(job)
    running = {view.device: view.running for view in queue.snapshot().devices if view.running}
    assert running == {device: run[0] for device, run in pool.runs.items()}
    if pool.random.random() < 0.03:
        explain_all(queue, pool.now_s)


def explain_all(queue: JobQueue, now_s: float) -> None:
    snapshot = queue.decision(now_s)
    outlook = Outlook(
        Cluster.restored(snapshot.cluster, now_s), ShareTree(snapshot.shares), snapshot.policy, now_s
    )
    for request in snapshot.cluster.waiting:
        assert sentence(outlook.explain(request.job)).endswith(".")


def nothing_idles(pool: SimulatedPool) -> None:
    """Assert that no eligible job which waits for a device alone has a free one."""
    snapshot = pool.queue.decision(pool.now_s).cluster
    open_devices = {node.node for node in snapshot.nodes if node.ready and not node.cordoned}
    kept = {node for reservation in snapshot.reserved for node, _ in reservation.where}
    free = open_devices - kept - {view.device for view in pool.queue.snapshot().devices if view.running}
    on_reserved = {reservation.job for reservation in snapshot.reserved}
    for request in snapshot.waiting:
        job = pool.queue.job(request.job)
        assert job is not None
        if request.job in on_reserved or job.memory not in ("free", "granted"):
            continue
        here = free & (request.demand.nodes or free)
        if request.move_s:
            here = here & {request.home}
        assert not here, f"{request.job} could run on {here}: {request}"


def why_stuck(pool: SimulatedPool) -> list[str]:
    """Explain each job that has not ended and could have."""
    stuck = []
    unavailable = {view.device for view in pool.queue.snapshot().devices if view.cordoned or not view.alive}
    snapshot = pool.queue.snapshot()
    held = {job.job for job in snapshot.jobs if job.target in unavailable}
    held |= {
        job.job
        for job in snapshot.jobs
        if job.assigned_device in unavailable and (job.settled or job.move_s is None)
    }
    behind = set(held)
    while True:
        sessions = {job.session for job in snapshot.jobs if job.job in behind}
        more = {j.job for j in snapshot.jobs if j.session in sessions or jobs_in(j.waits_for) & behind}
        if more <= behind:
            break
        behind |= more
    for job in snapshot.jobs:
        if job.job not in behind:
            stuck.append(f"{job.job} {job.state} {pool.queue.explain(job.job)}\n{job}")
    return stuck


@pytest.mark.parametrize("seed", range(sampled(40, 15)))
def test_every_cell_ends_once_all_is_calm(seed: int) -> None:
    pool = SimulatedPool(seed, devices=2 + seed % 2, sessions=4 + seed % 3, asks=seed % 5 != 0)
    pool.watch = partial(look, pool)
    for _ in range(8):
        pool.submit(pool.random.choice(list(pool.users)))
    for _ in range(80):
        pool.at(pool.random.random() * DISTURBED_S, partial(disturb, pool))
    pool.run(DISTURBED_S)
    calm(pool, keep_closed=seed % 4 == 0)
    before = {job.job: job.preemptions for job in pool.queue.snapshot().jobs}
    pool.moves.clear()
    pool.moves_most = 0

    def watch() -> None:
        look(pool)
        nothing_idles(pool)

    pool.watch = watch
    pool.run(DISTURBED_S + BOUND_S)
    assert not why_stuck(pool)
    for name in pool.jobs:
        job = pool.queue.job(name)
        assert job is None or job.preemptions - before.get(name, 0) < PREEMPTIONS_MAX
    assert pool.moves_most <= MOVES_MAX
    assert {a: round(s, 3) for a, s in pool.ran_s.items() if s} == {
        a: round(s, 3) for a, s in pool.charged_s.items() if s
    }


# -- what was found so -------------------------------------------------------------------------------------


def submitted(job: str, session: str, at_s: float = 0.0, **more: object) -> SegmentSubmitted:
    fields: dict[str, object] = {"priority": "NORMAL", "ops_total": 8, "final": True, "move_s": 0.0}
    return SegmentSubmitted(at_s, job, 0, session, session, **{**fields, **more})  # type: ignore[arg-type]


def opened(*devices: str) -> JobQueue:
    queue = JobQueue()
    for device in devices:
        queue.handle(DeviceAdded(0.0, device))
    return queue


def state(queue: JobQueue, job: str) -> tuple[JobState, str | None]:
    known = queue.job(job)
    assert known is not None
    return known.state, known.assigned_device


def preempt_on_cpu1_for_a_session_of_cpu0(queue: JobQueue) -> None:
    """Have a job of cpu:1 preempted for a session whose state is on the cordoned cpu:0."""
    queue.handle(submitted("own", "s0", memory="ask"))
    queue.handle(MemoryGranted(0.0, "own"))
    queue.handle(SegmentFinished(1.0, "own", 0, "done", 8))
    queue.handle(DeviceCordoned(1.0, "cpu:0", True))
    queue.handle(submitted("low", "s1", 1.0, priority="LOW"))
    queue.handle(submitted("best", "s0", 5.0, priority="CRITICAL", memory="granted"))
    low = queue.job("low")
    assert low is not None
    assert low.preempting


@pytest.mark.parametrize("lost", [False, True])
def test_reservation_on_a_device_lost_or_cordoned_meanwhile_is_given_up(lost: bool) -> None:
    queue = opened("cpu:0", "cpu:1")
    preempt_on_cpu1_for_a_session_of_cpu0(queue)
    closes = DeviceLost(6.0, "cpu:1", "killed") if lost else DeviceCordoned(6.0, "cpu:1", True)
    queue.handle(closes)
    queue.handle(DeviceCordoned(7.0, "cpu:0", False))
    assert state(queue, "best") == (JobState.RUNNING, "cpu:0")


def test_refused_move_to_reserved_capacity_is_not_tried_again() -> None:
    queue = opened("cpu:0", "cpu:1")
    preempt_on_cpu1_for_a_session_of_cpu0(queue)
    asked = queue.handle(SegmentPreempted(6.0, "low", 0, 3, 0.0))
    assert [command.device for command in asked if isinstance(command, PlaceSegment)] == ["cpu:1"]
    stays = queue.handle(MoveRefused(7.0, "best", "cpu:0", "the host is full"))
    stays += queue.handle(MemoryGranted(8.0, "best"))
    assert not [command for command in stays if isinstance(command, PlaceSegment)]
    assert state(queue, "low") == (JobState.RUNNING, "cpu:1")
    queue.handle(DeviceCordoned(9.0, "cpu:0", False))
    assert state(queue, "best") == (JobState.RUNNING, "cpu:0")


def test_refused_move_to_the_target_device_ends_the_cell_with_the_reason() -> None:
    queue = opened("cpu:0", "cpu:1")
    queue.handle(submitted("first", "s0"))
    assert state(queue, "first") == (JobState.RUNNING, "cpu:0")
    queue.handle(SegmentFinished(1.0, "first", 0, "done", 8))
    commands = queue.handle(submitted("wishes", "s0", 2.0, target="cpu:1", memory="ask", move_s=1.0))
    queue.handle(submitted("behind", "s0", 2.0, memory="ask"))
    assert [c.device for c in commands if isinstance(c, PlaceSegment) and c.job == "wishes"] == [
        "cpu:0",
        "cpu:1",
    ]
    commands = queue.handle(MoveRefused(5.0, "wishes", "cpu:0", "the host is full"))
    [message] = [command.message for command in commands if isinstance(command, EndSegment)]
    assert "cannot be moved there" in message
    assert "the host is full" in message
    queue.validate()
    queue.handle(MemoryGranted(6.0, "behind"))
    assert state(queue, "behind") == (JobState.RUNNING, "cpu:0")


def test_labels_say_where_a_cell_may_run_and_taints_where_others_may_not() -> None:
    queue = opened("cpu:0", "cpu:1")
    with pytest.raises(IllegalEvent, match=r"no device is gpu=h200 \(devices: cpu:0 \(kind=cpu\), cpu:1"):
        queue.handle(submitted("none", "s0", target="gpu=h200"))
    queue.handle(DeviceDescribed(0.0, "cpu:1", ("gpu=h200",), ("vision",)))
    with pytest.raises(IllegalEvent, match=r"does not tolerate .* --tolerate"):
        queue.handle(submitted("kept", "s0", target="gpu=h200"))
    tolerant = Terms(tolerates=("vision",))
    queue.handle(submitted("plain", "s1"))
    queue.handle(submitted("behind", "s2"))
    queue.handle(submitted("there", "s0", target="gpu=h200,kind=cpu", terms=tolerant))
    assert state(queue, "plain") == (JobState.RUNNING, "cpu:0")
    assert state(queue, "behind") == (JobState.QUEUED, "cpu:0")
    assert state(queue, "there") == (JobState.RUNNING, "cpu:1")
    queue.handle(SegmentFinished(1.0, "there", 0, "done", 8))
    assert state(queue, "behind") == (JobState.QUEUED, "cpu:0")
    queue.handle(DeviceDescribed(2.0, "cpu:1"))
    assert state(queue, "behind") == (JobState.RUNNING, "cpu:1")


def test_session_moves_to_the_target_device_and_off_a_tainted_one() -> None:
    queue = opened("cpu:0", "cpu:1")
    queue.handle(submitted("first", "s0", target="cpu:0"))
    queue.handle(SegmentFinished(1.0, "first", 0, "done", 8))
    queue.handle(submitted("second", "s0", 1.0, target="cpu:1"))
    assert state(queue, "second") == (JobState.RUNNING, "cpu:1")
    queue.handle(DeviceDescribed(2.0, "cpu:1", (), ("vision",)))
    assert state(queue, "second") == (JobState.RUNNING, "cpu:1")
    queue.handle(SegmentFinished(3.0, "second", 0, "done", 8))
    queue.handle(submitted("third", "s0", 3.0))
    assert state(queue, "third") == (JobState.RUNNING, "cpu:0")
    with pytest.raises(IllegalEvent, match="values live on cpu:0"):
        queue.handle(
            submitted("stuck", "s0", 3.0, target="cpu:1", move_s=None, terms=Terms(tolerates=("vision",)))
        )


@pytest.mark.parametrize("described", [("gpu",), ("=x",), ("a=b" * 40,)])
def test_invalid_label_taint_or_price_is_refused(described: tuple[str, ...]) -> None:
    queue = opened("cpu:0")
    with pytest.raises(IllegalEvent, match="no label"):
        queue.handle(DeviceDescribed(0.0, "cpu:0", described))
    with pytest.raises(IllegalEvent, match="no taint"):
        queue.handle(DeviceDescribed(0.0, "cpu:0", (), ("a b",)))
    with pytest.raises(IllegalEvent, match="price"):
        queue.handle(DeviceDescribed(0.0, "cpu:0", price=-1.0))


def test_of_equal_devices_the_cheaper_one_is_taken() -> None:
    queue = opened("cpu:0", "cpu:1")
    queue.handle(DeviceDescribed(0.0, "cpu:0", price=4.0))
    queue.handle(submitted("any", "s0"))
    assert state(queue, "any") == (JobState.RUNNING, "cpu:1")


def test_job_restored_on_a_device_then_cordoned_runs_on_another() -> None:
    queue = opened("cpu:0", "cpu:1")
    queue.handle(submitted("busy", "s1"))
    queue.handle(submitted("other", "s2"))
    queue.handle(submitted("moved", "s0", memory="ask"))
    queue.handle(MemoryGranted(0.0, "moved"))
    queue.handle(SegmentFinished(1.0, "other", 0, "done", 8))
    assert state(queue, "moved") == (JobState.RESTORING, "cpu:1")
    queue.handle(DeviceCordoned(2.0, "cpu:1", True))
    queue.handle(MemoryGranted(3.0, "moved"))
    queue.handle(SegmentFinished(4.0, "busy", 0, "done", 8))
    queue.handle(MemoryGranted(5.0, "moved"))
    assert state(queue, "moved") == (JobState.RUNNING, "cpu:0")


def test_cells_with_more_to_come_cannot_wait_for_each_other_across_sessions() -> None:
    """The next segment of each cell would wait behind a cell that depends on the other one."""
    queue = opened("cpu:0")
    queue.handle(submitted("a", "s0", final=False))
    queue.handle(SegmentFinished(1.0, "a", 0, "done", 8))
    queue.handle(submitted("c", "s1", 1.0, final=False))
    queue.handle(SegmentFinished(2.0, "c", 0, "done", 8))
    queue.handle(submitted("b", "s0", 2.0, terms=Terms(after=("c",))))
    with pytest.raises(IllegalEvent, match="cycle"):
        queue.handle(submitted("d", "s1", 2.0, terms=Terms(after=("a",))))


def test_closed_session_with_many_cells_ends_each_and_frees_dependents() -> None:
    queue = opened("cpu:0")
    queue.handle(submitted("busy", "s1"))
    jobs = [f"job{number}" for number in range(FINISHED_JOBS_MAX + 10)]
    for job in jobs:
        queue.handle(submitted(job, "s0"))
    queue.handle(submitted("after", "s2", terms=Terms(after=(jobs[0],), after_any=True)))
    notified = {c.job for c in queue.handle(SessionClosed(1.0, "s0")) if isinstance(c, Notify)}
    assert notified >= set(jobs)
    queue.handle(SegmentFinished(2.0, "busy", 0, "done", 8))
    assert state(queue, "after") == (JobState.RUNNING, "cpu:0")


def test_a_request_that_came_too_late_for_one_segment_is_not_remembered_for_the_next() -> None:
    queue = opened("cpu:0")
    queue.handle(submitted("a", "s0", final=False))
    queue.handle(PreemptRequested(1.0, "a", "by a test"))
    queue.handle(SegmentFinished(2.0, "a", 0, "done", 8))
    job = queue.job("a")
    assert job is not None
    assert not job.yields
    assert not job.preempting


def test_long_queue_notifies_only_the_jobs_of_the_event() -> None:
    queue = opened("cpu:0")
    for number in range(POSITIONS_SENT_MAX + 3):
        commands = queue.handle(submitted(f"job{number}", f"s{number}"))
    assert [c.position for c in commands if isinstance(c, Notify)] == [POSITIONS_SENT_MAX + 2]
