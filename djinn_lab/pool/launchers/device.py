"""The workers of one device: one for each trust group that uses it.

The first is started before any session is there. It shows that the device works, and belongs to the first
group that comes. Each other group gets a worker at its first order. A worker that dies is started again for
its group, after a back-off that doubles with every death of that group there and is forgotten after a minute
of life; other groups do not wait for it. A worker whose group has no session here any more ends after a
while, unless it is the last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine, Hashable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from djinn_lab.pool.devices.launcher import GroupLost, WorkerEvents, WorkerHealth
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.leases import Leases
from djinn_lab.pool.launchers.merged import NOTHING, Reporting, merged, with_memory
from djinn_lab.pool.launchers.pings import PING_EVERY_S, Liveness
from djinn_lab.pool.launchers.premises import Premises
from djinn_lab.pool.launchers.worker import Worker
from djinn_lab.protocol.device_processes import process_bytes
from djinn_lab.protocol.worker import (
    Calibrate,
    Close,
    Closed,
    CompileRegion,
    CopyDone,
    CopyFailed,
    CopyKept,
    CopyOrder,
    Drop,
    Expedite,
    FromWorker,
    HostWanted,
    Leased,
    Pong,
    ReleaseHost,
    RunBatch,
    RunOrder,
    Shutdown,
    ToWorker,
    WorkerMemory,
    WorkerReady,
    WornOut,
)
from djinn_lab.units import format_bytes

RESTART_DELAY_MIN_S = 0.1
RESTART_DELAY_MAX_S = 30.0
HEALTHY_AFTER_S = 60.0
UNUSED_AFTER_S = 60.0
DEATHS_BEFORE_READY_MAX = 3
ROOM_WITHIN_S, LOOK_AGAIN_S = 3.0, 0.01
RESULTS_KNOWN_MAX = 10_000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class GroupHistory:
    """``lives``: workers that the group had here before this one. ``deaths``: in a row. ``starts_at_s``: the
    next worker starts no earlier, whatever it is wanted for."""

    lives: int = 0
    deaths: int = 0
    starts_at_s: float = 0.0


class DeviceWorkers:
    """``events``: given once the pool serves; until then workers only start."""

    def __init__(self, plan: DevicePlan, premises: Premises) -> None:
        self.plan = plan
        self._premises = premises
        self._events: WorkerEvents | None = None
        self._workers: list[Worker] = []
        self._by_session: dict[str, Worker] = {}
        self._histories: defaultdict[str | None, GroupHistory] = defaultdict(GroupHistory)
        self._leases = Leases(
            plan.memory_bytes, plan.kind != "cpu", process_bytes(plan.kind), plan.spare_bytes
        )
        self._restarts = 0
        self._deaths_before_ready = 0
        self._up = self._was_up = False
        self._confined = True
        self._silent = False
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------------------

    def warm(self) -> None:
        """Start the first worker."""
        first = self._added(None)
        first.start(self._premises.starter, time.monotonic())

    def serve(self, events: WorkerEvents) -> None:
        self._events = events
        for worker in self._workers:
            self._watch(worker)
        self._begin_task(self._ping())

    def health(self) -> WorkerHealth:
        alive = [worker for worker in self._workers if worker.alive]
        groups = {worker.group or "": worker.pid for worker in alive}
        shown = {"pid": alive[0].pid} if alive else {}
        return WorkerHealth(bool(alive), self._restarts, shown, groups, not self._silent)

    def shut_down(self) -> None:
        for worker in self._workers:
            worker.send(Shutdown())

    async def end(self) -> None:
        """Stop watching. Their processes have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers:
            pid = None if worker.process is None else worker.process.pid
            self._premises.ended(worker.options, pid, worker.results)

    # -- orders --------------------------------------------------------------------------------------------

    def run(self, order: RunOrder) -> None:
        if isinstance(order, RunBatch) and not self._has_one_worker(order):
            for segment in order.segments:
                self.run(segment)
            return
        worker = self._measured() if isinstance(order, Calibrate) else self._given(order.session)
        if worker is not None:
            worker.send(order)

    def _has_one_worker(self, batch: RunBatch) -> bool:
        workers = [self._worker_of(segment.session) for segment in batch.segments]
        return None not in workers and len(set(map(id, workers))) == 1

    def copy(self, order: CopyOrder) -> None:
        if isinstance(order, Expedite):
            self.send(order)
            return
        if isinstance(order, CopyKept):
            self._keep(order)
            return
        worker = self._given(order.session)
        if worker is not None:
            worker.send(order)
            if isinstance(order, Drop):
                self._forget_session(worker, order.session)
            elif isinstance(order, Close):  # what it still runs stays its worker's until that is over
                worker.closing.add(order.session)
        elif isinstance(order, Close | Drop):  # of a session that the pool has forgotten, and no worker had
            self._say(Closed(order.session, self._memory()))

    def _keep(self, kept: CopyKept) -> None:
        """Tell the worker of a session, if there is one; what it closes or forgot stays so."""
        worker = self._by_session.get(kept.session)
        if worker is not None:
            worker.send(kept)

    def send(self, message: ToWorker) -> None:
        """Send to all workers; those that it does not concern ignore it."""
        for worker in self._workers:
            worker.send(message)

    def holder(self, session: str) -> Hashable:
        worker = self._by_session.get(session)
        group = self._group_of(session) if worker is None else worker.group
        return self.plan.device, group, self._histories[group].lives

    def lives(self) -> dict[str, int]:
        """Count the workers that each trust group had here before its present one; empty: none yet."""
        return {group or "": history.lives for group, history in self._histories.items()}

    # -- which worker --------------------------------------------------------------------------------------

    def _given(self, session: str) -> Worker | None:
        """Return the worker of a session that gets an order: also after a close it has the session again."""
        worker = self._worker_of(session)
        if worker is not None:
            worker.closing.discard(session)
        return worker

    def _worker_of(self, session: str) -> Worker | None:
        """Return the worker of the session's group, which may have to start; None for an unknown session."""
        found = self._by_session.get(session)
        if found is not None:
            return found
        group = self._group_of(session)
        if group is None:
            return None
        worker = self._of_group(group)
        self._by_session[session] = worker
        worker.sessions.add(session)
        return worker

    def _group_of(self, session: str) -> str | None:
        assert self._events is not None
        return self._events.trust_group(session)

    def _of_group(self, group: str) -> Worker:
        for worker in self._workers:
            if worker.group == group:
                return worker
        spare = next((worker for worker in self._workers if worker.group is None), None)
        if spare is not None and self._premises.is_first(group):
            spare.group = group
            return spare
        return self._begin(group)

    def _forget_session(self, worker: Worker, session: str) -> None:
        """The worker has a session no longer, unless a later order gives it the session again."""
        worker.sessions.discard(session)
        worker.closing.discard(session)
        del self._by_session[session]
        if not worker.sessions:
            asyncio.get_running_loop().call_later(UNUSED_AFTER_S, self._end_unused, worker)

    def _measured(self) -> Worker:
        """Return a worker that may measure the device, which is idle."""
        return self._workers[0] if self._workers else self._begin(None)

    def _begin(self, group: str | None) -> Worker:
        worker = self._added(group)
        self._watch(worker, self._histories[group].starts_at_s - time.monotonic())
        return worker

    def _added(self, group: str | None) -> Worker:
        options = replace(self._premises.options(self.plan, group), confined=self._confined)
        worker = Worker(options, group, self._leases)
        self._workers.append(worker)
        return worker

    # -- one worker's life ---------------------------------------------------------------------------------

    def _watch(self, worker: Worker, delay_s: float = 0.0) -> None:
        self._begin_task(self._live(worker, delay_s))

    def _begin_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=self.plan.device)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("a worker of %s is no longer watched", task.get_name(), exc_info=task.exception())

    async def _live(self, worker: Worker, delay_s: float) -> None:
        """Keep up with a worker from its start to its end, and see to its successor."""
        await asyncio.sleep(max(0.0, delay_s))
        await self._make_room()
        if self._premises.stopping:
            return
        if worker.process is None:
            worker.start(self._premises.starter, time.monotonic())
        assert worker.process is not None
        try:
            await worker.listen(lambda message: self._take(worker, message))
        except msgspec.DecodeError as error:
            log.error("%s: the worker sent what is not a message: %s", self.plan.device, error)
            worker.kill()
        how = await worker.process.ended()
        how = worker.why or how
        if self._premises.stopping:
            return
        self._premises.ended(worker.options, worker.process.pid, worker.results)
        if not worker.leaving:
            log.error("%s: a worker process %s", self.plan.device, how)
            self._lost(worker, how)
        self._premises.sweep()

    async def _make_room(self) -> None:
        """Wait for what other workers were asked to give up; one that runs a long op may take its time."""
        until_s = time.monotonic() + ROOM_WITHIN_S
        while not self._leases.settled and time.monotonic() < until_s:
            await asyncio.sleep(LOOK_AGAIN_S)

    def _lost(self, worker: Worker, how: str) -> None:
        """Report a dead worker, and begin its successor."""
        self._premises.compiler.died(worker)
        self._remove(worker)
        history = self._histories[worker.group]
        history.lives += 1
        if time.monotonic() - worker.started_s > HEALTHY_AFTER_S:
            history.deaths = 0
        delay_s = min(RESTART_DELAY_MAX_S, RESTART_DELAY_MIN_S * 2**history.deaths)
        history.deaths += 1
        history.starts_at_s = time.monotonic() + delay_s
        self._restarts += 1
        self._report(worker, how)
        self._hear()
        if all(other.group != worker.group for other in self._workers):
            self._begin(worker.group)

    def _report(self, worker: Worker, how: str) -> None:
        assert self._events is not None
        if worker.group is not None:
            lost = GroupLost(frozenset(worker.sessions), self._memory())
            self._events.worker_died(self.plan.device, how, lost)
        elif self._up and worker.ready:
            self._up = any(other.ready for other in self._workers)
            if not self._up:
                self._silent = False
                self._events.worker_died(self.plan.device, how)
        if worker.ready:
            self._deaths_before_ready = 0
            return
        if self._confined and self.plan.kind != "cpu" and not self._was_up:
            self._confined = False
            log.warning(
                "%s: its worker did not begin in the sandbox, of which its driver may need more. Its workers "
                "have level process-only now, at which no second user comes in (docs/security.md)",
                self.plan.device,
            )
        self._deaths_before_ready += 1
        if not self._up and self._deaths_before_ready >= DEATHS_BEFORE_READY_MAX:
            self._events.worker_failed(self.plan.device, how)

    async def _ping(self) -> None:
        """Report a device whose workers do not answer, and end a worker that does not for long."""
        while True:
            await asyncio.sleep(PING_EVERY_S)
            ready = [worker for worker in self._workers if worker.ready]
            answering = [worker for worker in ready if not worker.pings.silent]
            for worker in ready:
                liveness = worker.pings.pinged(beside=any(other is not worker for other in answering))
                if liveness is Liveness.SILENT:
                    log.warning("%s: a worker does not answer", self.plan.device)
                elif liveness is Liveness.HUNG:
                    log.error("%s: a worker is hung, and is ended", self.plan.device)
                    worker.kill()
                worker.ping()
                self._end_disobedient(worker)
            self._hear()

    def _end_disobedient(self, worker: Worker) -> None:
        """End a worker that is at an op which does not end. Its sessions' values are made again, or restored;
        the cell runs again, op by op, unless it was cancelled."""
        job = worker.stops.pinged()
        if job is not None:
            why = f"was ended: an op of {job} did not end after it was asked to stop"
            log.error("%s: a worker %s", self.plan.device, why)
            worker.kill(why)

    def _hear(self) -> None:
        """Report when all workers of the device are silent, or not any more: while one answers, the groups of
        the others wait for theirs to be ended."""
        ready = [worker for worker in self._workers if worker.ready]
        silent = bool(ready) and all(worker.pings.silent for worker in ready)
        if self._up and silent != self._silent:
            self._silent = silent
            assert self._events is not None
            self._events.worker_heard(self.plan.device, not silent)

    def _remove(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.leave()
        for session in worker.sessions:
            if self._by_session.get(session) is worker:
                del self._by_session[session]

    # -- what workers say ----------------------------------------------------------------------------------

    def _take(self, worker: Worker, message: FromWorker) -> None:
        if isinstance(message, WorkerReady):
            worker.ready = True
            if not self._up:
                self._up = self._was_up = True
                self._say(message)
            self._hear()
            return
        if worker.pings.heard() is Liveness.HEARD:
            log.warning("%s: a worker answers again", self.plan.device)
            self._hear()
        if isinstance(message, Pong):
            return
        if isinstance(message, CompileRegion):
            self._premises.compiler.want(message, self.plan, worker, worker.tell)
            return
        if isinstance(message, HostWanted):
            for other in self._workers:
                if other is not worker:
                    other.tell(ReleaseHost(message.nbytes, message.copies))
            if message.copies:
                self._premises.give_way()
            return
        if isinstance(message, WornOut):
            self._renew(worker, message)
            return
        worker.said(message)
        if isinstance(message, Closed) and message.session in worker.closing:
            self._forget_session(worker, message.session)
        if len(worker.results) > RESULTS_KNOWN_MAX:
            worker.results = self._premises.present(worker.results)
        if isinstance(message, Leased):
            return
        if isinstance(message, Reporting):
            message = with_memory(message, merged(worker.memory, self._memories(beside=worker)))
        self._say(message)
        if isinstance(message, CopyDone | CopyFailed):
            self._premises.sweep()

    def _renew(self, worker: Worker, worn: WornOut) -> None:
        """End a worker whose memory is in pieces, where its sessions lose nothing by that; else it goes on,
        and says so again."""
        assert self._events is not None
        if self._events.may_restart(self.plan.device, frozenset(worker.sessions)):
            log.warning(
                "%s: a worker holds %s of at most %s; it is started anew",
                *(self.plan.device, format_bytes(worn.held_bytes), format_bytes(worn.limit_bytes)),
            )
            worker.kill()

    def _say(self, message: FromWorker) -> None:
        assert self._events is not None
        self._events.worker_said(self.plan.device, message)

    def _memories(self, beside: Worker | None = None) -> Iterator[WorkerMemory]:
        return (worker.memory for worker in self._workers if worker is not beside)

    def _memory(self) -> WorkerMemory:
        return merged(NOTHING, self._memories())

    def _end_unused(self, worker: Worker) -> None:
        """End a worker whose group has no session here, and had none for a while."""
        if worker.sessions or worker not in self._workers or len(self._workers) == 1:
            return
        worker.leaving = True
        self._remove(worker)
        self._histories[worker.group].lives += 1
        worker.send(Shutdown())
