"""One host as the pool sees it: the agent there, what it was sent, and what it said last."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Protocol

import ray

from djinn_lab.pool.blobs.directory import RESULTS, STORE
from djinn_lab.pool.devices.launcher import HostHealth, WorkerEvents, WorkerHealth
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.merged import NOTHING, Reporting, with_memory
from djinn_lab.pool.launchers.named_files import needed_files, runs_of
from djinn_lab.pool.launchers.orphans import MOVED, is_named
from djinn_lab.pool.launchers.ray_cluster.files import STORE_FULL, Content, read_files, store_full_failure
from djinn_lab.pool.launchers.ray_cluster.held_copies import HeldCopies
from djinn_lab.pool.launchers.ray_cluster.link import Link, LinkUse
from djinn_lab.pool.launchers.ray_cluster.moves import NamedPiece
from djinn_lab.pool.launchers.ray_cluster.sent_files import SentFiles
from djinn_lab.pool.launchers.ray_cluster.tasks import begin
from djinn_lab.pool.launchers.ray_cluster.wire import (
    ActorHandle,
    Answers,
    Died,
    Failed,
    HostEvent,
    HostFacts,
    HostOrder,
    HostReport,
    Piece,
    Said,
    moved_name,
    sessions_of,
)
from djinn_lab.protocol.worker import (
    Close,
    CopyDone,
    CopyFailed,
    Drop,
    FirstValuesCopied,
    FromWorker,
    Restore,
    RunAnswer,
    SegmentFailed,
    ToWorker,
    WorkerMemory,
    WorkerReady,
    decode_from_worker,
    encode,
)

AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 30.0
"""How long after the loss of an agent, or after one could not start, another one is placed."""
ASKED_AGAIN_S = 1.0
"""How long after an agent did not answer it is asked again, until its loss is known."""
GONE = WorkerHealth(alive=False, restarts=0, answers=False)

log = logging.getLogger(__name__)


class Surroundings(Protocol):
    """What a host asks the launcher for."""

    events: WorkerEvents
    stopping: bool
    blobs: Path

    async def pieces(self, order: Restore, host: Host) -> tuple[tuple[Piece, ...], Content | None]:
        """Fetch what an order's manifest names on other hosts. Raises OSError where some of it is gone."""

    def sweep(self) -> None:
        """Have files of parked sessions removed that are not needed any more, on all hosts."""

    async def secure(self, manifest: bytes) -> None:
        """Have two hosts keep what the manifest names. Raises OSError where that is not possible."""

    def began(self, host: Host) -> None:
        """Handle that a host has an agent."""

    def lost(self, host: Host) -> None:
        """Handle the loss of a host, before that of its devices is reported."""


class Host:
    """``place``: asks Ray for an agent of these devices, and waits until it is there. ``facts``: of
    the last one. ``started``: how many there were."""

    def __init__(
        self,
        name: str,
        plans: tuple[DevicePlan, ...],
        place: Callable[[], Awaitable[tuple[ActorHandle, HostFacts]]],
        around: Surroundings,
    ) -> None:
        self.name = name
        self.plans = plans
        self._place = place
        self._around = around
        self._agent: ActorHandle | None = None
        self.facts: HostFacts | None = None
        self.started = 0
        self._health: dict[str, WorkerHealth] = {}
        self._lives: dict[str, dict[str, int]] = {}
        self._orphans: tuple[str, ...] = ()
        self._moved: set[tuple[str, str]] = set()
        """Devices, and sessions that moved there: no manifest of the pool names their files yet."""
        self._memory: dict[str, WorkerMemory] = {}
        self._restarts: Counter[str] = Counter()
        self._received = LinkUse()
        self._received_before = 0
        """By agents that are lost, in bytes."""
        self._results = Link()
        self._up: set[str] = set()
        self._sent = SentFiles(0)
        self._unneeded: list[str] = []
        self._orders: asyncio.Queue[tuple[str, ToWorker]] = asyncio.Queue()
        self._held = HeldCopies(around.secure, self._answers, self._report_copy)
        self._number = 0
        self._life: asyncio.Task[None] | None = None
        self._closing = False

    # -- for the launcher ----------------------------------------------------------------------------------

    def serve(self) -> None:
        self._life = begin(self._live(), f"host {self.name}")

    def order(self, device: str, message: ToWorker) -> None:
        """Order something, of the next agent while there is none."""
        if isinstance(message, Close | Drop):
            self._moved.discard((device, message.session))
        self._orders.put_nowait((device, message))

    def health(self, device: str) -> WorkerHealth:
        shown = self._health.get(device, GONE)
        return shown._replace(restarts=shown.restarts + self._restarts[device])

    def health_of_host(self, second_copies_bytes: int, leaving: Set[str]) -> HostHealth:
        """``leaving``: the nodes that Ray is about to end."""
        return HostHealth(
            self.name,
            tuple(plan.device for plan in self.plans),
            serves=self._agent is not None,
            losses=max(0, self.started - 1),
            received_bytes=self._received_before + self._received.nbytes,
            sent_bytes=self._results.use.nbytes,
            link_bytes_per_s=self._received.bytes_per_s,
            second_copies_bytes=second_copies_bytes,
            leaves=self.facts is not None and self.facts.node in leaving,
        )

    def lives(self, device: str, group: str | None) -> tuple[int, int]:
        """Identify the present worker of a trust group."""
        return self.started, self._lives.get(device, {}).get(group or "", 0)

    def has(self, path: str) -> bool:
        """Return whether a file of a parked session is on this host."""
        if self._agent is None or self.facts is None:
            return False
        return any(path.startswith(f"{root}/") for root in self.facts.roots)

    def keeps(self, path: str) -> bool:
        """Return whether a file is on this host that its agent reads for others: also one that a dead agent
        left."""
        if self._agent is None or self.facts is None:
            return False
        return self.has(path) or any(path.startswith(f"{left}/") for left in self.facts.left)

    @property
    def node(self) -> str | None:
        """Return the node where its agent is; None while that is lost."""
        return None if self._agent is None or self.facts is None else self.facts.node

    @property
    def awaits_agent(self) -> bool:
        """Return whether its agent is lost, and another one is not there yet."""
        return self._agent is None

    @property
    def second_copies_bytes_max(self) -> int:
        """Return how many bytes of second copies it may keep now; 0 while it is lost."""
        return 0 if self._agent is None or self.facts is None else self.facts.second_copies_bytes_max

    @property
    def held_manifests(self) -> Iterator[bytes]:
        """List those of copies that are not reported yet."""
        return self._held.manifests()

    async def read(self, pieces: tuple[Piece, ...]) -> Content:
        """Raises OSError where they are gone."""
        if self._agent is None:
            raise OSError(f"host {self.name} is lost")
        try:
            content: Content = await self._agent.read.remote(pieces)
        except ray.exceptions.RayError as error:
            raise OSError(_reason(error)) from error
        return content

    async def keep(self, name: str, pieces: Sequence[NamedPiece], content: Content) -> str:
        """Write a file of second copies, and return its path. Raises OSError where they are not what their
        names say, or where there is no space."""
        if self._agent is None:
            raise OSError(f"host {self.name} is lost")
        parts = [(piece.name, piece.place.nbytes) for piece in pieces]
        try:
            path: str = await self._agent.keep.remote(name, parts, content)
        except ray.exceptions.RayError as error:
            raise OSError(_reason(error)) from error
        return path

    def drop(self, paths: Iterable[str]) -> None:
        """Have files of second copies removed."""
        if self._agent is not None:
            self._agent.drop.remote(list(paths))

    def sweep(self, manifests: Iterable[bytes]) -> None:
        """Have files removed that are not needed any more."""
        if self._agent is None or not self._orphans:
            return
        moved = {moved_name(device, session) for device, session in self._moved}
        needed = list(manifests)
        free = [
            path
            for path in self._orphans
            if Path(path).name.split(MOVED)[0] not in moved and not is_named(path, needed)
        ]
        if free:
            self._agent.forget.remote(free)
            self._orphans = tuple(path for path in self._orphans if path not in free)

    def kill(self) -> None:
        if self._agent is not None:
            ray.kill(self._agent)

    async def _answers(self) -> None:
        """Wait until the agent has answered."""
        while True:
            if self._agent is not None:
                try:
                    await self._agent.answer.remote()
                except ray.exceptions.RayError as error:
                    log.warning("the agent of host %s does not answer: %s", self.name, _reason(error))
                else:
                    return
            await asyncio.sleep(ASKED_AGAIN_S)

    async def close(self, at_once: bool) -> None:
        """End the agent, and wait for its end."""
        self._closing = True
        agent, self._agent = self._agent, None
        self._held.clear()
        if agent is not None:
            try:
                await agent.close.remote(at_once)
            except ray.exceptions.RayError as error:
                log.warning("the agent of host %s was not closed: %s", self.name, _reason(error))
            ray.kill(agent)
        elif self._life is not None:
            self._life.cancel()
        if self._life is not None:
            await asyncio.gather(self._life, return_exceptions=True)
        self._health.clear()

    # -- life ----------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Keep an agent, and another one when it is lost."""
        again_s = AGAIN_MIN_S
        while not self._around.stopping:
            try:
                agent, facts = await self._place()
            except ray.exceptions.RayError as error:
                self._cannot_start(error)
                await asyncio.sleep(again_s)
                again_s = min(AGAIN_MAX_S, 2 * again_s)
                continue
            self._begin(agent, facts)
            how = await self._serve_agent(agent)
            ray.kill(agent)  # it may live on without one of its objects
            if self._around.stopping or self._closing:
                return
            log.error("the agent of host %s is lost: %s", self.name, how)
            self._lost(how)
            await asyncio.sleep(again_s)

    def _begin(self, agent: ActorHandle, facts: HostFacts) -> None:
        self._agent, self.facts = agent, facts
        self.started += 1
        log.info("host %s: its agent is process %d", self.name, facts.pid)
        self._number = 0
        self._sent = SentFiles(facts.blob_bytes_max or 0)
        self._unneeded.clear()
        self._around.began(self)

    async def _serve_agent(self, agent: ActorHandle) -> str:
        """Send orders and take reports until one of both fails, and return why."""
        work: list[Coroutine[None, None, None]] = [self._send_all(agent), self._hear_all(agent)]
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if isinstance(error := task.exception(), ray.exceptions.RayError):
                return _reason(error)
            task.result()
        return "ended"

    def _lost(self, how: str) -> None:
        """Report the loss of every device here."""
        self._agent, self._orphans, self._orders = None, (), asyncio.Queue()
        self._held.clear()
        self._received_before += self._received.nbytes
        self._received = LinkUse()
        self._around.lost(self)
        self._health.clear()
        self._lives.clear()
        self._moved.clear()
        self._memory.clear()
        lost, self._up = sorted(self._up), set()
        for device in lost:
            self._restarts[device] += 1
            self._around.events.worker_died(device, f"was lost with its host: {how}")

    def _cannot_start(self, error: ray.exceptions.RayError) -> None:
        """Report what is wrong with the host itself; a node that is lost may come back."""
        how = _reason(error)
        log.error("host %s: no agent can be started: %s", self.name, how)
        node_lost = isinstance(error, ray.exceptions.RayActorError) and not error.actor_init_failed
        if not self.started and not node_lost:
            for plan in self.plans:
                self._around.events.worker_failed(plan.device, how)

    # -- orders --------------------------------------------------------------------------------------------

    async def _send_all(self, agent: ActorHandle) -> None:
        while True:
            device, message = await self._orders.get()
            order = await self._prepared(device, message)
            if order is not None:
                self._number += 1
                agent.order.remote(self._number - 1, order)

    async def _prepared(self, device: str, message: ToWorker) -> HostOrder | None:
        """Attach what the host does not have; None where that is gone, which has been reported."""
        groups = {}
        for session in sessions_of(message):
            if (group := self._around.events.trust_group(session)) is not None:
                groups[session] = group
        uploads: dict[str, Content] = {}
        results: dict[str, Content] = {}
        if self.facts is not None and self.facts.blob_bytes_max is not None:
            try:
                uploads, results = await self._files(device, message)
            except STORE_FULL as error:
                self._cannot_send(device, message, error)
                return None
        pieces: tuple[Piece, ...] = ()
        content = None
        if isinstance(message, Restore) and message.manifest is not None:
            try:
                pieces, content = await self._around.pieces(message, self)
            except OSError as error:
                self._cannot_restore(device, message, str(error))
                return None
            if content is not None:
                self._moved.add((device, message.session))
        unneeded, self._unneeded = tuple(self._unneeded), []
        return HostOrder(device, encode(message), groups, uploads, results, unneeded, pieces, content)

    async def _files(self, device: str, message: ToWorker) -> tuple[dict[str, Content], dict[str, Content]]:
        uploads, results = needed_files(message)
        for run in runs_of(message):
            self._sent.begin(device, run)
        for name in uploads:
            if name in self._sent.uploads:
                self._sent.uploads.move_to_end(name)
        absent = [name for name in uploads if name not in self._sent.uploads]
        found = await read_files(self._around.blobs / STORE, absent)
        handed_on = await read_files(self._around.blobs / RESULTS, results)
        for name, content in found.items():
            self._sent.add(name, content.nbytes)
        self._unneeded += self._sent.evicted()
        return dict(found), dict(handed_on)

    def _cannot_send(self, device: str, message: ToWorker, error: Exception) -> None:
        """Answer in place of a worker: what the segments read did not come there."""
        log.error("what a cell reads cannot be sent to host %s: %s", self.name, error)
        failure = store_full_failure(
            f"What this cell reads could not be sent to host {self.name}", error, "the pool's node"
        )
        memory = self._memory.get(device, NOTHING)
        for run in runs_of(message):
            self._heard(device, SegmentFailed(run.job, run.segment, failure, 0, memory))

    def _cannot_restore(self, device: str, order: Restore, reason: str) -> None:
        """Answer in place of a worker: what was parked is gone for good."""
        said = f"what was parked of it is gone: {reason}"
        memory = self._memory.get(device, NOTHING)
        failed = CopyFailed(order.transfer, order.session, "restore", said, memory, mismatch=True)
        self._around.events.worker_said(device, failed)

    # -- what the agent says -------------------------------------------------------------------------------

    async def _hear_all(self, agent: ActorHandle) -> None:
        while True:
            report: HostReport = await agent.report.remote()
            self._health = dict(report.health)
            self._lives = {device: dict(lives) for device, lives in report.lives.items()}
            self._orphans, self._received = report.orphans, report.received
            for event in report.events:
                await self._take(event)

    async def _take(self, event: HostEvent) -> None:
        events = self._around.events
        match event:
            case Said():
                for name, content in event.results.items():
                    await self._results.receive(self._around.blobs / RESULTS / name, content)
                self._heard(event.device, decode_from_worker(event.message))
            case Died():
                sessions = None if event.group is None else event.group.sessions
                if sessions is None:
                    self._up.discard(event.device)
                self._held.release(event.device, sessions)
                self._forget(event.device, sessions)
                events.worker_died(event.device, event.how, event.group)
            case Answers():
                events.worker_heard(event.device, event.heard)
            case Failed():
                events.worker_failed(event.device, event.how)

    def _heard(self, device: str, message: FromWorker) -> None:
        if isinstance(message, WorkerReady):
            self._up.add(device)
        if isinstance(message, RunAnswer):
            self._unneeded += self._sent.end(device, message.job, message.segment)
        if isinstance(message, Reporting):
            self._memory[device] = message.memory
        if isinstance(message, CopyDone | CopyFailed | FirstValuesCopied):
            self._held.take(device, message)
        else:
            self._around.events.worker_said(device, message)

    def _report_copy(self, device: str, message: CopyDone | CopyFailed | FirstValuesCopied) -> None:
        """Report a copy, with what is known of the memory now."""
        if isinstance(message, CopyDone) and message.manifest is not None:
            self._moved.discard((device, message.session))
        self._around.events.worker_said(device, with_memory(message, self._memory[device]))
        if isinstance(message, CopyDone | CopyFailed):
            self._around.sweep()

    def _forget(self, device: str, sessions: frozenset[str] | None) -> None:
        """Forget what was under way with workers that died; None: of all sessions there."""
        self._unneeded += self._sent.died(device, sessions)
        self._moved = {
            (at, session)
            for at, session in self._moved
            if at != device or (sessions is not None and session not in sessions)
        }


def _reason(error: ray.exceptions.RayError) -> str:
    """Return the first line that says something."""
    cause = getattr(error, "cause", None)
    text = str(cause if cause is not None else error)
    return text.strip().splitlines()[-1 if cause is None else 0]
