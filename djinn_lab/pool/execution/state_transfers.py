"""Carry out session memory's decisions: transfers at the workers, and the loss of sessions' values.

Holds no policy. What a stored session looks like (its manifest) is kept here, so that another worker can
restore it after the one that stored it died.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from djinn_lab import engine, memory
from djinn_lab.events import Rebuild
from djinn_lab.pool.bookkeeping.records import JobRecord, RunningSegment
from djinn_lab.pool.devices.launcher import GroupLost, Launcher
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.sessions.admission import INLINE_BYTES_MAX
from djinn_lab.pool.sessions.registry import SessionRegistry
from djinn_lab.protocol import worker
from djinn_lab.protocol.worker import Reads
from djinn_lab.srg.liveness import FirstUses, first_uses
from djinn_lab.srg.plan_key import decode_contents
from djinn_lab.srg.program import decode_program
from djinn_lab.units import capitalised

AN_EARLIER_RUN = "an earlier run of the pool"
"""Holds what no present process has."""
SETTLE_S = 5.0
"""A worker reads messages between two ops, so a busy one may take so long to drop released values."""
SETTLE_LOOK_S = 0.002

_NOTHING = worker.WorkerMemory(0, 0, {})

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoredSession:
    """``by``: the process that stored it, and knows it without the manifest. ``released``: values of the
    manifest that the session has released; ``sent``: how many of them the process that restores it knows."""

    manifest: bytes
    by: Hashable
    released: list[int] = field(default_factory=list)
    sent: int = 0


@dataclass(slots=True)
class PendingReleases:
    """Values of a session that were released at a device and may be in a manifest that it makes: until it has
    answered (in the order in which they were sent), and in the next manifest, which may have been on its
    way."""

    sent: deque[list[int]] = field(default_factory=deque)
    answered: list[int] = field(default_factory=list)

    def answer(self) -> None:
        if self.sent:
            self.answered += self.sent.popleft()

    def in_manifest(self) -> list[int]:
        """Return the values released so far that a manifest, which has just come, may list."""
        answered, self.answered = self.answered, []
        return [*answered, *(value for values in self.sent for value in values)]


Transfer = memory.TransferCommand | memory.ExpediteTransfer


class StateTransfers:
    """Order transfers of sessions' state, and turn workers' answers into events. ``handle``: handles an event
    with the engine, and carries out its commands. ``reads``: what a job's segment reads of its session, None
    where it is to start when all of that is there. ``copied``: is called with each manifest, its device, and
    values in it that were released; done once the database has it, None where it keeps a former one.
    ``released``: gives a release its serial (:attr:`djinn_lab.protocol.worker.RunSegment.serial`).
    ``unread``: of a session's released values, those that no replay of lost runs will read."""

    def __init__(
        self,
        core: JournaledEngine,
        launcher: Launcher,
        registry: SessionRegistry,
        handle: Callable[[engine.Event], None],
        reads: Callable[[str], worker.Reads | None],
        copied: Callable[[str, worker.CopyDone, Sequence[int]], Future[None] | None],
        released: Callable[[str, Sequence[int]], int],
        unread: Callable[[str, Sequence[int]], list[int]],
    ) -> None:
        self._core = core
        self._launcher = launcher
        self._registry = registry
        self._handle = handle
        self._reads = reads
        self._copied = copied
        self._serial_of = released
        self._unread = unread
        self._former: dict[str, str] = {}
        """By session: the device with its last whole copy, where it is not its device any more."""
        self._stored: dict[str, StoredSession] = {}
        self._replaced: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        """By session, and the transfer that made the next one: manifests that the database may still have."""
        self._reported: dict[str, worker.WorkerMemory] = {}
        self._releases: defaultdict[tuple[str, str], PendingReleases] = defaultdict(PendingReleases)
        """By device and session."""

    async def settle_releases(self, session: str) -> None:
        """Wait until workers have dropped what the session released so far, ``SETTLE_S`` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while any(one == session and pending.sent for (_, one), pending in self._releases.items()):
                    await asyncio.sleep(SETTLE_LOOK_S)

    def returned(self, session: str, manifest: bytes, released: Sequence[int]) -> None:
        """Know a session that an earlier run of the pool parked. ``released``: values in the manifest that
        the session has released."""
        self._stored[session] = StoredSession(manifest, AN_EARLIER_RUN, [*released])

    # -- from the engine -----------------------------------------------------------------------------------

    def free(self, command: memory.FreeSession) -> None:
        self.forget(command.session)
        self._releases.pop((command.device, command.session), None)
        self._launcher.copy(command.device, worker.Close(command.session))

    def drop_parked(self, command: memory.DropParked) -> None:
        """Drop a session's former copy once the database has another whole one: should its device or the pool
        be lost before, its values are made from it."""
        self._drop_former(command.session)
        if command.session in self._stored:
            self._former[command.session] = command.device
        else:
            self._launcher.copy(command.device, worker.Drop(command.session))

    def forget(self, session: str) -> None:
        """The session needs none of its copies any more."""
        self._stored.pop(session, None)
        self._replaced.pop(session, None)
        self._drop_former(session)

    def _drop_former(self, session: str) -> None:
        device = self._former.pop(session, None)
        if device is not None:
            self._launcher.copy(device, worker.Drop(session))

    def lost(self, command: memory.ValuesLost, why: str) -> None:
        """``why``: they could not be made again."""
        self.forget(command.session)
        session = self._registry.get(command.session)
        if session is not None:
            reason = capitalised(command.reason)
            again = f": {why}" if why else ""
            session.lost = f"{reason}, and this session's values are lost{again}."

    def transfer(self, command: Transfer) -> None:
        match command:
            case memory.StoreSession():
                order: worker.CopyOrder = worker.StoreState(
                    command.transfer, command.session, command.expedited
                )
            case memory.EvictSession():
                order = worker.Evict(command.transfer, command.session, command.discard)
            case memory.RestoreSession():
                order = self._restore(command)
            case memory.DemoteSession():
                order = worker.Demote(command.transfer, command.session)
            case memory.ForgetStored():
                order = worker.Forget(command.transfer, command.session)
            case memory.ExpediteTransfer():
                order = worker.Expedite(command.transfer, self._reads(command.job))
        self._launcher.copy(command.device, order)

    # -- from workers --------------------------------------------------------------------------------------

    def report(self, device: str, report: worker.WorkerMemory, job: str | None = None) -> None:
        """Notify the engine of a worker's memory, at the end of ``job``'s segment if given."""
        known = self._reported.get(device)
        before = known or _NOTHING
        self._reported[device] = report
        event = memory.MemoryReported(
            at_s=self._now_s(),
            device=device,
            used_bytes=report.used_bytes,
            peak_bytes=report.peak_bytes,
            session_bytes=_changed(before.session_bytes, report.session_bytes),
            shared_bytes=report.shared_bytes,
            kv_bytes=_changed(before.kv_bytes, report.kv_bytes),
            unstored_bytes=_changed(before.unstored_bytes, report.unstored_bytes),
            ready_bytes=_changed(before.ready_bytes, report.ready_bytes),
            weight_bytes=_changed(before.weight_bytes, report.weight_bytes),
            offloaded_bytes=_changed(before.offloaded_bytes, report.offloaded_bytes),
            host_bytes=report.host_bytes,
            disk_bytes=report.disk_bytes,
            on_disk_bytes=_changed(before.on_disk_bytes, report.on_disk_bytes),
            job=job,
            partial=known is not None,
        )
        try:
            self._handle(event)
        except memory.IllegalEvent as error:
            del self._reported[device]
            log.error("%s: the worker's memory report makes no sense: %s", device, error)

    def reported(self, device: str) -> worker.WorkerMemory:
        """Return what the device's worker reported last."""
        return self._reported.get(device, _NOTHING)

    def first_restored(self, device: str, first: worker.FirstValuesCopied) -> None:
        self.report(device, first.memory)
        event = memory.FirstValuesRestored(self._now_s(), first.transfer, first.session, device, first.job)
        self._report_transfer(event)

    def transferred(self, device: str, done: worker.CopyDone) -> None:
        if done.manifest is not None and self._core.accounts.knows(done.session):
            pending = self._releases.get((device, done.session))
            released = [] if pending is None else pending.in_manifest()
            holder = self._launcher.holder(device, done.session)
            before = self._stored.get(done.session)
            if before is not None:
                self._replaced[done.session][done.transfer] = before.manifest
            self._stored[done.session] = StoredSession(done.manifest, holder, released)
            self._await_commit(device, done, self._copied(device, done, released))
        if done.kind == "restore":
            self._restored(device, done.session)
        self._transfer_ended(
            done,
            memory.TransferDone(
                at_s=self._now_s(),
                transfer=done.transfer,
                session=done.session,
                device=device,
                kind=done.kind,
                copied_bytes=done.copied_bytes,
                copy_s=done.copy_s,
                queued_s=done.queued_s,
                checked_pieces=done.checked_pieces,
                whole=done.whole,
            ),
        )

    def _await_commit(self, device: str, done: worker.CopyDone, committed: Future[None] | None) -> None:
        """Once the database has a copy, give up those before: a next pool needs what it reads there."""
        if committed is None:
            return
        former = self._former.get(done.session)
        if committed.done():
            self._committed(device, done, former, committed)
            return
        loop = asyncio.get_running_loop()

        def wake_loop(future: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._committed, device, done, former, future)

        committed.add_done_callback(wake_loop)

    def _committed(
        self, device: str, done: worker.CopyDone, former: str | None, committed: Future[None]
    ) -> None:
        """``former``: the device with the last copy of another one, when this one was made."""
        if committed.exception() is not None or not self._core.accounts.knows(done.session):
            return
        replaced = self._replaced[done.session]
        if done.transfer in replaced:
            for transfer in [*replaced]:
                del replaced[transfer]
                if transfer == done.transfer:
                    break
        if former is not None and self._former.get(done.session) == former:
            self._drop_former(done.session)
        self._launcher.copy(device, worker.CopyKept(done.transfer, done.session))

    def _restored(self, device: str, session: str) -> None:
        """Send the releases since the restore was ordered, before anything runs there."""
        stored = self._stored.get(session)
        holder = self._launcher.holder(device, session)
        if stored is not None and stored.by != holder:
            stored.by = holder
            late = self._unread(session, stored.released[stored.sent :])
            if late:
                self.drop_values(device, session, late)

    def not_transferred(self, device: str, failed: worker.CopyFailed) -> None:
        log.warning("%s: %s of session %s failed: %s", device, failed.kind, failed.session, failed.reason)
        if failed.mismatch:
            self.forget(failed.session)
        self._transfer_ended(
            failed,
            memory.TransferFailed(
                at_s=self._now_s(),
                transfer=failed.transfer,
                session=failed.session,
                device=device,
                kind=failed.kind,
                reason=failed.reason,
                full=failed.full,
                mismatch=failed.mismatch,
            ),
        )

    def released(self, device: str, message: worker.Released) -> None:
        """Record that a worker dropped released values."""
        self.report(device, message.memory)
        pending = self._releases.get((device, message.session))
        if pending is not None:
            pending.answer()

    def died(self, device: str, rebuilds: dict[str, Rebuild], group: GroupLost | None) -> None:
        """Notify the engine that a worker died; what the worker parked can still be restored. ``rebuilds``:
        as in :class:`djinn_lab.events.WorkerDied`. ``group``: as in
        :class:`~djinn_lab.pool.devices.launcher.WorkerEvents`."""

        def was_there(session: str, at: str) -> bool:
            return at == device and (group is None or session in group.sessions)

        for at, session in [(at, session) for at, session in self._releases if was_there(session, at)]:
            del self._releases[at, session]
        self._reported.pop(device, None)
        self._former = {session: at for session, at in self._former.items() if not was_there(session, at)}
        sessions = None if group is None else tuple(sorted(group.sessions))
        self._handle(engine.WorkerDied(self._now_s(), device, rebuilds, sessions))
        if group is not None:
            self.report(device, group.memory)

    def manifests(self) -> Iterator[bytes]:
        """List the manifests from which sessions may be restored, here or by a next pool."""
        yield from (stored.manifest for stored in self._stored.values())
        for replaced in self._replaced.values():
            yield from replaced.values()

    def needed_manifests(self) -> list[bytes]:
        """List those of sessions whose state is on no device, or on its way."""
        accounts = {session: self._core.accounts.session(session) for session in self._stored}
        return [
            self._stored[session].manifest
            for session, account in accounts.items()
            if account is None or account.tier != "device" or account.moving is not None
        ]

    # -- from sessions -------------------------------------------------------------------------------------

    def release(self, session: str, values: list[int]) -> None:
        """Drop values that the session has released."""
        account = self._core.accounts.session(session)
        stored = self._stored.get(session)
        if account is None:
            return
        serial = self._serial_of(session, values)
        known = account.device is not None and (
            account.tier == "device"
            or stored is None
            or stored.by == self._launcher.holder(account.device, session)
        )
        if stored is not None:
            stored.released += values
        dropped = self._unread(session, values) if known else []
        if dropped:
            assert account.device is not None
            self.drop_values(account.device, session, dropped, serial)

    # -- parts ---------------------------------------------------------------------------------------------

    def _transfer_ended(
        self,
        answer: worker.CopyDone | worker.CopyFailed,
        event: memory.TransferDone | memory.TransferFailed,
    ) -> None:
        self.report(event.device, answer.memory)
        self._report_transfer(event)

    def _report_transfer(
        self, event: memory.FirstValuesRestored | memory.TransferDone | memory.TransferFailed
    ) -> None:
        try:
            self._handle(event)
        except memory.IllegalEvent as error:
            log.error("%s: the worker's transfer makes no sense: %s", event.device, error)

    def drop_values(self, device: str, session: str, values: Sequence[int], serial: int = 0) -> None:
        """Drop values of a session that is on the device."""
        self._releases[device, session].sent.append([*values])
        self._launcher.run(device, worker.Release(session, tuple(values), serial))

    def _restore(self, command: memory.RestoreSession) -> worker.Restore:
        """Order a restore. A process that did not store the session gets its manifest, and which of its
        values were released: their bytes may be in use by others."""
        stored = self._stored.get(command.session)
        if self._former.get(command.session) == command.device:
            self._drop_former(command.session)  # it is out of date there
        account = self._core.accounts.session(command.session)
        order = worker.Restore(
            command.transfer,
            command.session,
            command.expedited,
            reads=self._reads(command.job),
            nbytes=0 if account is None else account.total_bytes - account.offloaded_bytes,
        )
        if stored is None or stored.by == self._launcher.holder(command.device, command.session):
            return order
        stored.sent = len(stored.released)
        released = tuple(self._unread(command.session, stored.released))
        return replace(order, manifest=stored.manifest, released=released)

    def _now_s(self) -> float:
        return self._core.clock.now_s()


def _changed(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return what differs, with 0 for what is gone: reports of hundreds of sessions are journaled several
    times a second."""
    if before == now:
        return {}
    changed = {name: nbytes for name, nbytes in now.items() if before.get(name) != nbytes}
    return changed | dict.fromkeys(before.keys() - now.keys(), 0)


def reads_of(job: str, record: JobRecord | None) -> Reads | None:
    """List the values that a segment reads, so that it may start before all of its session is restored. None
    for a gang's segment, and for a program that takes long to inspect."""
    flight = record.flight if record is not None else None
    if flight is None or flight.gang is not None:
        return None
    uses = _uses(flight)
    return None if uses is None else Reads(job, uses.values, uses.first)


def _uses(flight: RunningSegment) -> FirstUses | None:
    executed = flight.stops.executed if flight.stops is not None else 0
    if not executed:
        return _named(flight)
    if len(flight.program) > INLINE_BYTES_MAX:
        return None
    return first_uses(decode_program(flight.program), executed)


def _named(flight: RunningSegment) -> FirstUses | None:
    """Translate first uses to the numbers of this program's values."""
    if flight.reads is None:
        return None
    sources = decode_contents(flight.program).sources
    return FirstUses(tuple(sources[place].value for place in flight.reads.values), flight.reads.first)
