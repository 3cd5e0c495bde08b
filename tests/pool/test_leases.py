"""Byte leases of a device's workers: their sum, and which orders wait for which answers."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from djinn_lab.pool.launchers import worker as launched
from djinn_lab.pool.launchers.leases import Holder, Leases
from djinn_lab.protocol.template import WorkerOptions
from djinn_lab.protocol.worker import (
    Close,
    Closed,
    CopyDone,
    FromWorker,
    Lease,
    Leased,
    Release,
    Released,
    Restore,
    RunSegment,
    SegmentCancelled,
    StoreState,
    ToWorker,
    WorkerMemory,
)

NOTHING = WorkerMemory(0, 0, {})
RUN = RunSegment("job", 0, "session", b"")
RAN = SegmentCancelled("job", 0, 0, NOTHING)


class Worker:
    """Enforces its lease, and answers when it is asked to."""

    def __init__(self, leases: Leases, capacity_bytes: int) -> None:
        self.sent: list[ToWorker] = []
        self.limit_bytes = capacity_bytes
        self.used_bytes = 0
        self.session_bytes: dict[str, int] = {}
        self.unconfirmed: list[int] = []
        self.leases = leases
        self.holder: Holder = leases.join(self._take)

    def _take(self, message: ToWorker) -> None:
        self.sent.append(message)
        if isinstance(message, Lease):
            self.unconfirmed.append(message.limit_bytes)

    def confirm(self) -> None:
        self.limit_bytes = max(self.used_bytes, self.unconfirmed.pop(0))
        self.leases.said(self.holder, Leased(self.limit_bytes), self.holder.memory)

    def order(self, message: ToWorker) -> None:
        self.leases.order(self.holder, message)

    def say(self, message: FromWorker) -> None:
        memory = WorkerMemory(self.used_bytes, self.used_bytes, dict(self.session_bytes))
        self.leases.said(self.holder, message, memory)

    def ran(self) -> None:
        self.say(RAN)

    def arrive(self, restore: Restore) -> None:
        """Take what a restore needs, as far as memory is free."""
        here = self.session_bytes.get(restore.session, 0)
        taken = min(restore.nbytes - here, max(0, self.limit_bytes - self.used_bytes))
        self.used_bytes += taken
        self.session_bytes[restore.session] = here + taken

    @property
    def leased(self) -> list[int]:
        return [message.limit_bytes for message in self.sent if isinstance(message, Lease)]


def two(used_bytes: int = 0) -> tuple[Worker, Worker]:
    leases = Leases(100)
    one, other = Worker(leases, 100), Worker(leases, 100)
    one.order(RUN)
    one.used_bytes = used_bytes
    for _ in list(one.unconfirmed):
        one.confirm()
    one.ran()
    return one, other


def test_the_only_worker_of_a_device_needs_no_lease() -> None:
    only = Worker(Leases(100), 100)
    only.order(RUN)
    assert only.sent == [RUN]


def test_a_segment_may_use_what_others_do_not_hold() -> None:
    _, other = two(used_bytes=30)
    other.order(RUN)
    assert other.sent == [Lease(70), RUN]


def test_a_restore_beside_another_groups_run_waits_until_that_run_released_memory() -> None:
    one, other = two()
    one.order(RUN)
    other.order(Restore(1, "session", nbytes=20))
    other.order(StoreState(2, "session"))
    assert other.sent == []
    assert one.leased[-1] == 80
    one.confirm()
    assert other.sent == [Lease(20), Restore(1, "session", nbytes=20), StoreState(2, "session")]


def test_a_run_that_has_used_more_keeps_it() -> None:
    one, other = two()
    one.order(RUN)
    one.used_bytes = 95
    other.order(Restore(1, "session", nbytes=20))
    one.confirm()
    assert other.leased == [5]


def test_a_run_leaves_restores_of_others_what_they_will_take() -> None:
    one, other = two()
    other.order(Restore(1, "session", nbytes=20))
    one.order(RUN)
    assert other.leased[-1] == 20
    other.confirm()
    assert one.leased[-1] == 80


def test_the_lease_of_a_lost_worker_is_free_for_others() -> None:
    one, other = two(used_bytes=60)
    one.leases.leave(one.holder)
    other.order(RUN)
    assert other.sent == [RUN]


def test_an_order_does_not_wait_for_a_worker_that_is_lost() -> None:
    one, other = two()
    one.order(RUN)
    other.order(Restore(1, "session", nbytes=20))
    one.leases.leave(one.holder)
    assert other.sent == [Restore(1, "session", nbytes=20)]


def test_a_release_beside_another_groups_run_takes_no_memory_from_it() -> None:
    one, other = two()
    one.order(RUN)
    before = one.leased
    other.order(Release("session", (1, 2)))
    assert other.sent[-1] == Release("session", (1, 2))
    assert one.leased == before


def test_bytes_that_a_restore_has_taken_are_not_reserved_once_more() -> None:
    one, other = two()
    other.order(Restore(1, "session", nbytes=20))
    other.used_bytes = other.session_bytes["session"] = 20
    other.say(SegmentCancelled("other job", 0, 0, NOTHING))
    one.order(RUN)
    other.confirm()
    assert one.leased[-1] == 80


def test_a_closed_session_needs_nothing_for_its_restore() -> None:
    one, other = two()
    for message in (Restore(1, "closed", nbytes=20), Restore(2, "session", nbytes=5), Close("closed")):
        other.order(message)
    other.say(Closed("closed", NOTHING))
    one.order(RUN)
    other.confirm()
    assert one.leased[-1] == 95


def test_a_restore_beside_its_own_groups_run_gets_what_others_have_freed() -> None:
    one, other = two(used_bytes=60)
    other.order(RUN)
    assert other.leased[-1] == 40
    one.used_bytes = 0
    one.say(Released("session", NOTHING))
    other.order(Restore(1, "session", nbytes=50))
    assert other.leased[-1] == 100


def test_a_workers_report_that_a_later_one_has_passed_is_left_out() -> None:
    options = WorkerOptions("cpu:0", 100, 1, "store", "results")
    worker = launched.Worker(options, None, Leases(100))
    for number, used_bytes in ((2, 20), (1, 90)):
        worker.said(Released("session", WorkerMemory(used_bytes, used_bytes, {}, number=number)))
    assert worker.memory.used_bytes == 20


Act = tuple[int, str, int]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["run", "restore", "arrive", "answer", "grow"]),
            st.integers(0, 40),
        )
    )
)
def test_workers_never_hold_more_than_the_device_has(acts: list[Act]) -> None:
    leases = Leases(100)
    workers = [Worker(leases, 100) for _ in range(3)]
    transfers = 0
    for place, act, nbytes in acts:
        worker = workers[place]
        running = [one for one in workers if one.holder.runs]
        match act:
            case "run" if not running and not any(one.holder.waiting for one in workers):
                worker.order(RUN)
            case "restore":
                transfers += 1
                worker.order(Restore(transfers, f"session {transfers}", nbytes=nbytes))
            case "arrive" if worker.holder.restores:
                worker.arrive(next(iter(worker.holder.restores.values())))
                worker.say(Released("another", NOTHING))
            case "answer" if worker.unconfirmed:
                worker.confirm()
            case "answer" if worker.holder.restores:
                restore = next(iter(worker.holder.restores.values()))
                worker.arrive(restore)
                worker.say(CopyDone(restore.transfer, restore.session, "restore", NOTHING))
            case "answer" if worker.holder.runs:
                worker.ran()
            case "grow" if worker.holder.runs:
                worker.used_bytes = min(worker.limit_bytes, worker.used_bytes + nbytes)
            case _:
                pass
        assert sum(one.used_bytes for one in workers) <= 100


class KeepingWorker(Worker):
    """Keeps what it has freed until it is asked to return it, and cannot return all of that: ``stuck_bytes``
    lie in pieces that are in use in part."""

    reserved_bytes = stuck_bytes = 0

    def confirm(self) -> None:
        wanted_bytes = self.unconfirmed.pop(0)
        if self.reserved_bytes > wanted_bytes:
            stuck_bytes = min(self.stuck_bytes, self.reserved_bytes - self.used_bytes)
            self.reserved_bytes = self.used_bytes + stuck_bytes
        self.limit_bytes = max(wanted_bytes, self.reserved_bytes)
        self.leases.said(self.holder, Leased(self.limit_bytes), self.holder.memory)

    def use(self, nbytes: int) -> None:
        self.used_bytes = min(self.limit_bytes, nbytes)
        self.reserved_bytes = max(self.reserved_bytes, self.used_bytes)

    def ran(self) -> None:
        held = WorkerMemory(self.used_bytes, self.used_bytes, {}, held_bytes=self.reserved_bytes)
        self.leases.said(self.holder, RAN, held)


def two_that_keep(
    used_bytes: int, kept_bytes: int, stuck_bytes: int = 0
) -> tuple[KeepingWorker, KeepingWorker]:
    leases = Leases(100, kept=True)
    one, other = KeepingWorker(leases, 100), KeepingWorker(leases, 100)
    one.order(RUN)
    one.stuck_bytes = stuck_bytes
    one.use(used_bytes + kept_bytes)
    one.use(used_bytes)
    one.ran()
    return one, other


def test_an_idle_worker_that_keeps_what_it_freed_returns_it_before_another_runs() -> None:
    one, other = two_that_keep(used_bytes=30, kept_bytes=40)
    other.order(RUN)
    assert other.sent == []
    assert one.leased == [30]
    one.confirm()
    assert other.sent == [Lease(70), RUN]


def test_what_an_idle_worker_cannot_return_is_not_given_to_others() -> None:
    one, other = two_that_keep(used_bytes=30, kept_bytes=40, stuck_bytes=15)
    other.order(RUN)
    one.confirm()
    assert other.sent == [Lease(55), RUN]
    other.ran()
    other.order(RUN)
    assert other.sent[2:] == [RUN]


def test_others_give_up_what_a_new_process_takes() -> None:
    leases = Leases(100, kept=True, process_bytes=15, spare_bytes=20)
    one = KeepingWorker(leases, 100)
    one.order(RUN)
    assert one.sent == [RUN]  # one process has its part beside what is leased
    one.use(90)
    one.use(30)
    one.ran()
    other = KeepingWorker(leases, 100)
    assert not leases.settled
    assert one.leased == [30]
    one.confirm()
    assert leases.settled
    other.order(RUN)
    assert other.sent == [Lease(60), RUN]


def test_an_idle_worker_that_keeps_nothing_is_not_asked() -> None:
    one, other = two_that_keep(used_bytes=30, kept_bytes=0)
    other.order(RUN)
    assert one.leased == []
    assert other.sent == [Lease(70), RUN]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["run", "use", "ran", "answer"]), st.integers(0, 100))
    )
)
def test_workers_that_keep_memory_never_hold_more_than_the_device_has(acts: list[Act]) -> None:
    leases = Leases(100, kept=True)
    workers = [KeepingWorker(leases, 100) for _ in range(3)]
    act_out(workers, acts, lambda: 100)


@example([(1, "join", 0), (1, "run", 0), (2, "join", 0), (1, "answer", 0), (1, "use", 76)])
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["run", "use", "ran", "answer", "join"]), st.integers(0, 100)
        )
    )
)
def test_memory_and_what_processes_take_are_never_more_than_the_card(acts: list[Act]) -> None:
    """A card of 120, of which 100 are for sessions; each process takes 15. One that joins begins when the
    others have given up what it takes."""
    leases = Leases(100, kept=True, process_bytes=15, spare_bytes=20)
    workers = [KeepingWorker(leases, 100)]
    begun = 1

    def left() -> int:
        nonlocal begun
        begun = len(workers) if leases.settled else begun
        return 120 - 15 * begun

    act_out(workers, acts, left, lambda: KeepingWorker(leases, 100))


def act_out(
    workers: list[KeepingWorker],
    acts: list[Act],
    left: Callable[[], int],
    make: Callable[[], KeepingWorker] | None = None,
) -> None:
    """``left``: what the card has for their memory. ``make``: one more worker."""
    for place, act, nbytes in acts:
        if place >= len(workers):
            if act == "join" and make is not None and len(workers) < 4:
                workers.append(make())
            continue
        worker = workers[place]
        waits = any(one.holder.runs or one.holder.waiting for one in workers)
        match act:
            case "run" if not waits:
                worker.order(RUN)
            case "use" if worker.holder.runs and not worker.unconfirmed:
                worker.use(nbytes)
                worker.stuck_bytes = nbytes // 5
            case "ran" if worker.holder.runs:
                worker.ran()
            case "answer" if worker.unconfirmed:
                worker.confirm()
            case _:
                pass
        assert sum(one.reserved_bytes for one in workers) <= left()
    for worker in workers:
        while worker.unconfirmed:
            worker.confirm()
    assert not any(one.holder.waiting for one in workers)
