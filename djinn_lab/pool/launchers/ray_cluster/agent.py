"""The agent of one host: an actor of Ray that runs the local launcher for the devices of its node.

It performs the pool's orders in the order of their numbers, whatever the order in which they arrive, and
hands over what happened when it is asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import ray
from msgspec.structs import replace

from djinn_lab.errors import PoolError
from djinn_lab.pool.blobs.directory import (
    PARKED,
    RESULTS,
    STORE,
    claim_directory,
    default_bytes_max,
    note_lead,
    open_blob_directory,
    own_directory,
    remove_directories_of_lost,
    remove_directory,
)
from djinn_lab.pool.devices.cuda_cards import find_cards
from djinn_lab.pool.devices.launcher import GroupLost
from djinn_lab.pool.devices.plans import DevicePlan, on_card
from djinn_lab.pool.launchers.local import LocalLauncher
from djinn_lab.pool.launchers.named_files import made_files
from djinn_lab.pool.launchers.ray_cluster.files import (
    STORE_FULL,
    Content,
    read_files,
    read_parts,
    store_full_failure,
)
from djinn_lab.pool.launchers.ray_cluster.left_copies import agent_bases, agents_belonging
from djinn_lab.pool.launchers.ray_cluster.link import Link
from djinn_lab.pool.launchers.ray_cluster.moves import adopted_manifest
from djinn_lab.pool.launchers.ray_cluster.wire import (
    Answers,
    Died,
    Failed,
    HostEvent,
    HostFacts,
    HostOptions,
    HostOrder,
    HostReport,
    Piece,
    Said,
    moved_name,
)
from djinn_lab.protocol.device_processes import process_bytes
from djinn_lab.protocol.piece_names import has_content
from djinn_lab.protocol.version import VERSION
from djinn_lab.protocol.worker import (
    Cancel,
    Close,
    CopyOrder,
    Drop,
    FromWorker,
    Preempt,
    Restore,
    RunOrder,
    SegmentDone,
    SegmentFailed,
    ToWorker,
    WorkerReady,
    decode_from_worker,
    decode_to_worker,
    encode,
)

LOOK_EVERY_S = 0.5
SECOND_COPIES = "second-copies"

log = logging.getLogger(__name__)


class HostAgent:
    """Raises PoolError where the node has another version of this package, or of torch, than the pool."""

    def __init__(self, options: HostOptions) -> None:
        found = {"djinn-lab": (VERSION, options.version), "torch": (version("torch"), options.torch_version)}
        for package, (here, there) in found.items():
            if here != there:
                raise PoolError(
                    f"Host {socket.gethostname()} has {package} {here}, and the pool has {there}.",
                    f"Install {package} {there} on that host.",
                )
        self._options = options
        name = f"{options.pool}-{uuid.uuid4().hex[:12]}"
        memory, disk = agent_bases()
        for base in (memory, disk):
            remove_directories_of_lost(base, f"{options.pool}-")
        belonging = agents_belonging(options.belonging)
        self._own = open_blob_directory(name, memory, belonging)
        self._disk = own_directory(disk, name, belonging)
        for directory in (self._own, self._disk):
            note_lead(directory)  # a next agent waits for the end of this one
        self._blobs = self._own if options.blob_directory is None else Path(options.blob_directory)
        needed = list(map(Path, options.left_files))
        self._left = [path for path in map(Path, options.left) if claim_directory(path, needed)]
        self._launcher = LocalLauncher(self._blobs, options.command, self._own / PARKED, self._disk)
        self._link = Link()
        self._local = _local_names(options.plans)
        self._names = {local: name for name, local in self._local.items()}
        self._groups: dict[str, str] = {}
        self._pending: dict[int, HostOrder] = {}
        self._next = 0
        self._arrived = asyncio.Event()
        self._events: list[HostEvent] = []
        self._happened = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._reported: HostReport | None = None

    # -- calls of the pool ---------------------------------------------------------------------------------

    async def start(self) -> HostFacts:
        """Start the workers."""
        self._work = asyncio.get_running_loop().create_task(self._perform_all(), name="orders")
        for plan in _with_memory(self._options.plans):
            self._launcher.spawn(replace(plan, device=self._local[plan.device]), self)
        own = self._options.blob_directory is None
        return HostFacts(
            ray.get_runtime_context().get_node_id(),
            os.getpid(),
            (str(self._own / PARKED), str(self._disk)),
            tuple(map(str, self._left)),
            default_bytes_max(self._own) if own else None,
            sum(plan.host_bytes + plan.disk_bytes for plan in self._options.plans),
        )

    async def order(self, number: int, order: HostOrder) -> None:
        """Take an order, to be performed after those of lower numbers."""
        self._pending[number] = order
        self._arrived.set()

    async def report(self) -> HostReport:
        """Wait until something has happened, or workers are not as they were, and return that."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._happened.wait(), LOOK_EVERY_S)
            self._happened.clear()
            events, self._events = self._events, []
            found = tuple([await self._with_results(event) for event in events])
            health = {name: self._launcher.health(local) for name, local in self._local.items()}
            lives = {name: self._launcher.lives(local) for name, local in self._local.items()}
            state = HostReport((), health, lives, tuple(self._launcher.orphans()), self._link.use)
            if found or state != self._reported:
                self._reported = state
                return replace(state, events=found)

    async def answer(self) -> None:
        """Say that it lives."""

    async def read(self, pieces: Iterable[Piece]) -> Content:
        """Return the bytes of parked sessions. Raises OSError where they are not here, or not parked ones."""
        roots = (self._own / PARKED, self._disk, *self._left)
        parts = [(Path(piece.path).resolve(), piece.offset, piece.nbytes) for piece in pieces]
        for path, _, _ in parts:
            if not any(path.is_relative_to(root.resolve()) for root in roots):
                raise OSError(f"{path.name} is no file of a parked session")
        return await read_parts(parts)

    async def forget(self, orphans: Iterable[str]) -> None:
        """Remove files that no manifest names any more."""
        self._launcher.remove_orphans(Path(path) for path in orphans)

    async def keep(self, name: str, parts: Sequence[tuple[bytes, int]], content: Content) -> str:
        """Write second copies of pieces, by name and bytes, to the disk, and return the file's path. Raises
        OSError where they are not what their names say."""
        directory = self._disk / SECOND_COPIES
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / name
        await self._link.receive(path, content)
        if not await asyncio.to_thread(_is_whole, path, parts):
            path.unlink()
            raise OSError("a parked session changed while it was copied")
        return str(path)

    async def drop(self, paths: Iterable[str]) -> None:
        """Remove files of second copies, and of those that dead agents left."""
        for path in map(Path, paths):
            of_others = any(path.resolve().is_relative_to(left.resolve()) for left in self._left)
            (path if of_others else self._disk / SECOND_COPIES / path.name).unlink(missing_ok=True)

    async def close(self, at_once: bool) -> None:
        """End all workers, and remove the directories unless what is parked stays (``at_once``)."""
        if self._work is not None:
            self._work.cancel()
        await self._launcher.close(at_once)
        if not at_once:
            for directory in (self._own, self._disk, *self._left):
                remove_directory(directory)

    # -- events of the launcher ----------------------------------------------------------------------------

    def worker_said(self, device: str, message: FromWorker) -> None:
        if isinstance(message, WorkerReady):
            message = replace(message, device=self._names[device])
        shared = self._options.blob_directory is not None
        results = {} if shared else dict.fromkeys(made_files(message), Content(0))
        self._happen(Said(self._names[device], encode(message), results))

    def worker_died(self, device: str, how: str, group: GroupLost | None = None) -> None:
        self._happen(Died(self._names[device], how, group))

    def worker_heard(self, device: str, heard: bool) -> None:
        self._happen(Answers(self._names[device], heard))

    def worker_failed(self, device: str, how: str) -> None:
        self._happen(Failed(self._names[device], how))

    def trust_group(self, session: str) -> str | None:
        return self._groups.get(session)

    def may_restart(self, device: str, sessions: frozenset[str]) -> bool:
        """Only the pool knows what can be made again: workers of this host go on."""
        return False

    def manifests(self) -> list[bytes]:
        """Keep all orphans: the pool knows which are needed, and has the others removed."""
        return [path.encode() for path in self._launcher.orphans()]

    def needed_manifests(self) -> None:
        """Count nothing that dead workers left: only the pool knows which sessions are on a device."""

    def _happen(self, event: HostEvent) -> None:
        self._events.append(event)
        self._happened.set()

    async def _with_results(self, event: HostEvent) -> HostEvent:
        """Attach the results that an event names, where the pool does not see the same files."""
        if not isinstance(event, Said) or not event.results:
            return event
        results = self._blobs / RESULTS
        try:
            content = await read_files(results, event.results)
        except STORE_FULL as error:
            log.error("a result cannot be sent: %s", error)
            event = replace(event, message=encode(_unsent(event.message, error)))
            content = {}
        for name in event.results:
            (results / name).unlink(missing_ok=True)
        return replace(event, results=content)

    # -- orders --------------------------------------------------------------------------------------------

    async def _perform_all(self) -> None:
        while True:
            while (order := self._pending.pop(self._next, None)) is None:
                self._arrived.clear()
                await self._arrived.wait()
            self._next += 1
            try:
                await self._perform(order)
            except Exception:
                # What the pool waits for would never come: it sees the loss of this agent instead.
                log.critical("an order cannot be performed", exc_info=True)
                os._exit(1)

    async def _perform(self, order: HostOrder) -> None:
        for name in order.unneeded:
            (self._blobs / STORE / name).unlink(missing_ok=True)
            (self._blobs / RESULTS / name).unlink(missing_ok=True)
        for directory, files in ((STORE, order.uploads), (RESULTS, order.results)):
            for name, content in files.items():
                await self._link.receive(self._blobs / directory / name, content)
        self._groups.update(order.groups)
        message = decode_to_worker(order.message)
        if isinstance(message, Restore) and order.pieces_content is not None:
            message = await self._adopted(order.device, message, order.pieces, order.pieces_content)
        self._give(order.device, message)

    def _give(self, name: str, message: ToWorker) -> None:
        device = self._local[name]
        match message:
            case Cancel():
                self._launcher.cancel(device, message.job)
            case Preempt():
                self._launcher.preempt(device, message.job, message.segment)
            case _ if isinstance(message, RunOrder):
                self._launcher.run(device, message)
            case _ if isinstance(message, CopyOrder):
                self._launcher.copy(device, message)
        if isinstance(message, Close | Drop):
            self._groups.pop(message.session, None)

    async def _adopted(
        self, device: str, order: Restore, pieces: tuple[Piece, ...], content: Content
    ) -> Restore:
        """Write down what was parked on other hosts, and let the manifest name it here."""
        assert order.manifest is not None
        group = self._groups[order.session]
        name = moved_name(device, order.session)
        path = await self._launcher.adopt(group, name, lambda target: self._link.receive(target, content))
        return replace(order, manifest=adopted_manifest(order.manifest, pieces, str(path)))


def _unsent(message: bytes, error: Exception) -> SegmentFailed:
    """Return the answer to a segment that ran, and whose results cannot be sent."""
    done = decode_from_worker(message)
    assert isinstance(done, SegmentDone)  # no other message names results
    here = socket.gethostname()
    failure = store_full_failure(f"A result could not be sent from host {here}", error, "that host")
    executed = len(done.node_end_s)
    return SegmentFailed(done.job, done.segment, failure, executed, done.memory, done.rng_state)


def _is_whole(path: Path, parts: Iterable[tuple[bytes, int]]) -> bool:
    """Return whether a file consists of these pieces."""
    with path.open("rb", buffering=0) as file:
        return all(has_content(name, file.read(nbytes)) for name, nbytes in parts)


def _local_names(plans: Sequence[DevicePlan]) -> dict[str, str]:
    """Name the devices as this host does, by the pool's names: each kind from 0."""
    counts: Counter[str] = Counter()
    names = {}
    for plan in plans:
        names[plan.device] = f"{plan.kind}:{counts[plan.kind]}"
        counts[plan.kind] += 1
    return names


def _with_memory(plans: Sequence[DevicePlan]) -> list[DevicePlan]:
    """Fill in the memory of CUDA devices, which only their host knows. Raises PoolError where it has fewer
    of them."""
    if all(plan.memory_bytes for plan in plans):
        return [replace(plan, spare_bytes=process_bytes(plan.kind)) for plan in plans]
    found = find_cards()
    if len(found.cards) < len(plans):
        why = f": {found.problem}" if found.problem else ""
        raise PoolError(
            f"Host {socket.gethostname()} has {len(found.cards)} CUDA devices that torch can use, of "
            f"{len(plans)}{why}.",
            found.advice or "Check there that nvidia-smi lists them.",
        )
    return [on_card(plan, card) for plan, card in zip(plans, found.cards, strict=False)]
