"""Byte leases: how much of a device's memory each of its workers may use.

The leases of a device never add up to more than the device has, and every worker enforces its own. A worker
with nothing under way can only shrink, so its lease is what it holds. Before an order that takes memory is
sent, the others are left what they hold and what their restores will take; a segment gets all the rest. Where
another worker is busy with a larger lease, it is asked to give up a part, and the order waits for its answer.
A device with one worker has one lease, which is the whole device: nothing is sent.

On an accelerator a process keeps what it has freed (``kept``), and others cannot have that. There an idle
worker that holds more than it is left is asked to return it, too, and what it cannot return stays its own.
Each process takes some of the device for itself, a driver's context for instance: what more of them take than
the device has beside its sessions' memory is not leased.

No policy: session memory has planned what fits. This keeps a worker that takes more than was predicted from
taking it from other groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from djinn_lab.pool.launchers.merged import NOTHING
from djinn_lab.protocol.worker import (
    Close,
    Closed,
    CopyDone,
    CopyFailed,
    FromWorker,
    Lease,
    Leased,
    Restore,
    RunBatch,
    RunPreempted,
    RunSegment,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    ToWorker,
    WorkerMemory,
)

Send = Callable[[ToWorker], None]


@dataclass(eq=False)
class Holder:
    """A worker's share. ``lease_bytes``: what it may have; ``sent_bytes``: the limit sent last.
    ``memory``: as last reported. ``runs``: segments without an answer; ``restores``: those without one, by
    transfer. ``closing``: by session that is being closed, its restores, which have no other answer.
    ``asked``: leases that it has not confirmed. ``waiting``: orders that wait for others to confirm theirs,
    and those behind them."""

    send: Send
    lease_bytes: int
    sent_bytes: int
    memory: WorkerMemory = NOTHING
    runs: int = 0
    restores: dict[int, Restore] = field(default_factory=dict)
    closing: dict[str, list[int]] = field(default_factory=dict)
    asked: int = 0
    waiting: deque[ToWorker] = field(default_factory=deque)

    @property
    def busy(self) -> bool:
        return self.runs > 0 or bool(self.restores)

    @property
    def needed_bytes(self) -> int:
        """What it holds, and what its restores will still take."""
        here = self.memory.session_bytes
        coming = (max(0, one.nbytes - here.get(one.session, 0)) for one in self.restores.values())
        return self.memory.used_bytes + sum(coming)


class Leases:
    """The leases of one device of ``capacity_bytes``. ``kept``: its workers keep what they have freed.
    ``process_bytes``: what each process takes for itself, ``spare_bytes``: what the device has for that."""

    def __init__(
        self, capacity_bytes: int, kept: bool = False, process_bytes: int = 0, spare_bytes: int = 0
    ) -> None:
        self._all_bytes = capacity_bytes
        self._kept = kept
        self._process_bytes, self._spare_bytes = process_bytes, spare_bytes
        self._holders: list[Holder] = []

    @property
    def settled(self) -> bool:
        """Return whether no worker is asked to give anything up, and none has to be."""
        return not any(one.asked for one in self._holders) and not self._leased_too_much

    def join(self, send: Send) -> Holder:
        """Add a worker, which holds nothing and enforces the whole device until it gets a lease. Where its
        process takes what others may have, they are asked for it (:attr:`settled`)."""
        lease_bytes = 0 if self._holders else self._all_bytes
        holder = Holder(send, lease_bytes, self._all_bytes)
        self._holders.append(holder)
        self._make_room()
        return holder

    def leave(self, holder: Holder) -> None:
        """Remove a worker that has ended, with all that it held."""
        self._holders.remove(holder)
        self._advance()

    def order(self, holder: Holder, message: ToWorker) -> None:
        """Send a worker's next message, as soon as its lease covers it."""
        holder.waiting.append(message)
        self._serve(holder)

    def said(self, holder: Holder, message: FromWorker, memory: WorkerMemory) -> None:
        """Note a worker's message, and what it reported last."""
        holder.memory = memory
        match message:
            case Leased():
                holder.asked -= 1
                if not holder.asked:
                    holder.lease_bytes = message.limit_bytes
            case SegmentDone() | SegmentFailed() | SegmentCancelled() | RunPreempted():
                holder.runs = max(0, holder.runs - 1)
            case CopyDone() | CopyFailed():
                holder.restores.pop(message.transfer, None)
            case Closed():
                for transfer in holder.closing.pop(message.session, ()):
                    holder.restores.pop(transfer, None)
            case _:
                return
        self._advance()

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def _capacity_bytes(self) -> int:
        """Of the device, what is leased."""
        beside_bytes = len(self._holders) * self._process_bytes - self._spare_bytes
        return max(0, self._all_bytes - max(0, beside_bytes))

    @property
    def _leased_too_much(self) -> bool:
        return sum(one.lease_bytes for one in self._holders) > self._capacity_bytes

    def _make_room(self) -> None:
        """Ask for what the processes take that have come since it was leased."""
        for one in self._holders if self._process_bytes and len(self._holders) > 1 else ():
            if self._leased_too_much:
                self._left(one, [other for other in self._holders if other is not one], 0)

    def _advance(self) -> None:
        self._make_room()
        for holder in self._holders:
            self._serve(holder)

    def _serve(self, holder: Holder) -> None:
        while holder.waiting:
            message = holder.waiting[0]
            if isinstance(message, RunSegment | RunBatch | Restore) and not self._covered(holder, message):
                return
            holder.waiting.popleft()
            match message:
                case RunSegment():
                    holder.runs += 1
                case RunBatch():
                    holder.runs += len(message.segments)
                case Restore():
                    holder.restores[message.transfer] = message
                case Close():
                    named = [one for one in holder.restores.values() if one.session == message.session]
                    holder.closing[message.session] = [one.transfer for one in named]
                case _:
                    pass
            holder.send(message)

    def _covered(self, holder: Holder, message: RunSegment | RunBatch | Restore) -> bool:
        """Return whether the worker has a lease for the order; if not, others were asked to give some up."""
        others = [one for one in self._holders if one is not holder]
        wanted_bytes = self._capacity_bytes
        if isinstance(message, Restore) and not holder.runs:
            wanted_bytes = holder.needed_bytes + message.nbytes
        if not all(self._left(one, others, wanted_bytes) for one in others):
            return False
        holder.lease_bytes = max(0, self._capacity_bytes - sum(one.lease_bytes for one in others))
        if holder.sent_bytes != holder.lease_bytes:
            self._set_limit(holder, holder.lease_bytes)
        return True

    def _left(self, one: Holder, others: list[Holder], wanted_bytes: int) -> bool:
        """Leave one of the others what it needs, and a running one what no other worker wants; return whether
        that is so already."""
        left_bytes = one.needed_bytes
        if one.runs:
            beside_bytes = sum(other.needed_bytes for other in others if other is not one)
            left_bytes = max(left_bytes, self._capacity_bytes - wanted_bytes - beside_bytes)
        if one.asked:
            return False
        if one.lease_bytes <= max(left_bytes, one.memory.used_bytes):
            return True
        holds_more = self._kept and one.memory.held_bytes > left_bytes
        if not one.busy and not holds_more:
            one.lease_bytes = left_bytes  # its limit is sent before it may take more
            return True
        if one.sent_bytes <= left_bytes:
            return True  # it was asked for as much already, and held more
        self._set_limit(one, left_bytes)
        return False

    def _set_limit(self, holder: Holder, limit_bytes: int) -> None:
        holder.sent_bytes = limit_bytes
        holder.asked += 1
        holder.send(Lease(limit_bytes))
