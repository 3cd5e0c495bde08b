"""The interface between the pool and the workers of its devices.

What crosses it: names of devices, sessions, jobs, transfers and blobs, in the messages of
:mod:`djinn_lab.protocol.worker`. What stays behind it: processes, sockets, files and where they lie. How the
pool decides does not depend on the launcher; :mod:`djinn_lab.pool.launchers` has the implementations, and
``tests/pool/test_launcher_contract.py`` says what each must do.

Sessions of different trust groups never share a process. The pool counts and schedules by device, whatever
the number of its processes; only the loss of a worker says whose sessions it had.

Orders for one session arrive in the order in which they were given. A cancel, a preempt and a copy also reach
a worker that runs a segment. No method waits for the worker: what it answers comes as an event. An order to a
worker that is lost, but not yet reported, has no effect; a later one reaches its successor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.protocol.worker import CopyOrder, FromWorker, RunOrder, WorkerMemory


class WorkerHealth(NamedTuple):
    """``alive``: whether there is a worker now, ready or not. ``restarts``: how many were started in place of
    dead ones. ``shown``: numbers by which an operator finds the first worker on its machine, such as
    ``pid``; ``groups``: such a number for each trust group, empty for none yet. The pool shows them and goes
    by none. ``answers``: whether one of the workers answers pings."""

    alive: bool
    restarts: int
    shown: Mapping[str, int] = {}
    groups: Mapping[str, int] = {}
    answers: bool = True


class HostHealth(NamedTuple):
    """A host that the pool reaches over a network. ``serves``: whether its workers can be reached now.
    ``losses``: how often they could not be, or were lost. ``received_bytes``: that it was sent;
    ``sent_bytes``: results that it sent. ``link_bytes_per_s``: at which tensors came lately, None for not
    known yet. ``second_copies_bytes``: of sessions that others parked. ``leaves``: whether it is about to be
    taken away."""

    name: str
    devices: tuple[str, ...]
    serves: bool
    losses: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    link_bytes_per_s: float | None = None
    second_copies_bytes: int = 0
    leaves: bool = False


class GroupLost(NamedTuple):
    """The loss of one trust group's worker, on a device that lives on. ``sessions``: those that it had.
    ``memory``: what the device's other workers hold."""

    sessions: frozenset[str]
    memory: WorkerMemory


class TakenCopy(NamedTuple):
    """A session's last whole copy of an earlier run of the pool, which was taken over. ``disk_bytes``: of its
    pieces on the disk."""

    manifest: bytes
    disk_bytes: int


class WorkerEvents(Protocol):
    """Receive a launcher's events, on the thread of the event loop."""

    def worker_said(self, device: str, message: FromWorker) -> None:
        """Handle a worker's message. The first of every device, and the first after its loss, is a
        :class:`~djinn_lab.protocol.worker.WorkerReady`. Memory is that of all the device's workers."""

    def worker_died(self, device: str, how: str, group: GroupLost | None = None) -> None:
        """Handle the loss of a worker: once, after the last message that it sent. Another is started.
        ``how``: the rest of a sentence about the worker. ``group``: of a worker that had sessions; None: the
        device is lost until its next :class:`~djinn_lab.protocol.worker.WorkerReady`."""

    def worker_heard(self, device: str, heard: bool) -> None:
        """Handle that a ready worker does not answer pings any more (``heard`` is False), or answers again.
        One that stays silent is ended, and reported as dead."""

    def worker_failed(self, device: str, how: str) -> None:
        """Handle that workers of a device ended before they were ready, several in a row."""

    def may_restart(self, device: str, sessions: frozenset[str]) -> bool:
        """Return whether the worker with these sessions can be ended now without a loss: it runs nothing, and
        all that it holds can be made again."""

    def trust_group(self, session: str) -> str | None:
        """Name the group with which the session may share a process; None for an unknown session."""

    def manifests(self) -> Iterable[bytes]:
        """List the manifests from which sessions may still be restored. What dead workers parked is kept as
        long as one of these names it."""

    def needed_manifests(self) -> Sequence[bytes] | None:
        """List those of sessions that are on no device, the only place of their state; None where that is not
        known here."""


class NodeSupply(Protocol):
    """Nodes that a cluster adds on request, and ends when they are not needed. Counts are of nodes with
    devices of the pool."""

    def count(self) -> int:
        """Return how many nodes there are, with those whose agents are being placed."""

    def arrived(self) -> Sequence[DevicePlan]:
        """Return the devices, to be spawned, of requested nodes that came since the last call."""

    def further(self, nodes: int) -> Sequence[tuple[str, ...]]:
        """Name the devices that so many further nodes would have, node by node."""

    def came_on_request(self, host: str) -> bool:
        """Return whether a host's node was not there at the start of the pool."""

    def scale(self, nodes: int) -> None:
        """Ask for so many nodes in all, in place of the last request. Takes milliseconds while the
        cluster's head answers. Raises OSError where it does not."""

    def release(self, host: str) -> Awaitable[None]:
        """End a host's workers for good; nothing is said of their devices any more. Raises OSError, with
        nothing changed, where what is parked there is on no other host."""


class Launcher(Protocol):
    """Starts a worker for each device and trust group that uses it, carries orders to it, and starts another
    when it dies."""

    def spawn(self, plan: DevicePlan, events: WorkerEvents) -> None:
        """Give a device workers until :meth:`close`. Called once a device, inside the running event loop."""

    def run(self, device: str, order: RunOrder) -> None:
        """Run a segment, or measure the device. Each order has exactly one answer, unless the worker dies."""

    def copy(self, device: str, order: CopyOrder) -> None:
        """Copy a session's values between device, host and disk, or drop them from one."""

    def cancel(self, device: str, job: str) -> None:
        """Stop a job's segment before its next op, for good."""

    def preempt(self, device: str, job: str, segment: int) -> None:
        """Stop a segment before its next op, to be resumed."""

    def health(self, device: str) -> WorkerHealth:
        """Say how a spawned device's workers are."""

    def hosts(self) -> Sequence[HostHealth]:
        """Say how the hosts are; none where the pool's own machine has all devices."""

    def cluster_dashboard(self) -> str:
        """Return the URL of the page that the hosts' cluster has of itself, empty for none."""

    def node_supply(self) -> NodeSupply | None:
        """Return where nodes can be asked for, None for nowhere."""

    def holder(self, device: str, session: str) -> Hashable:
        """Identify the process that has a session on a device, or would get it. Another process holds nothing
        of the session that it was not given."""

    async def close(self, at_once: bool = False) -> None:
        """End all workers and remove what they left; later calls have no effect. ``at_once``: let none end
        what it does, and leave what they parked to a next pool."""
