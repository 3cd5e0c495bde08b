"""Byte leases: how much of a device's memory each of its workers may use.

The leases of a device never add up to more than the device has, and every worker enforces its own. A worker
with nothing under way can only shrink, so its lease is what it holds. Before an order that takes memory is
sent, the others are left what they hold and what their restores will take; a segment gets all the rest. Where
another worker is busy with a larger lease, it is asked to give up a part, and the order waits for its answer.
A device with one worker has one lease, which is the whole device: nothing is sent.

No policy: session memory has planned what fits. This keeps a worker that takes more than was predicted from
taking it from other groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from djinn_lab.protocol.worker import (
    CopyDone,
    CopyFailed,
    FromWorker,
    Lease,
    Leased,
    Restore,
    RunPreempted,
    RunSegment,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    ToWorker,
)

Send = Callable[[ToWorker], None]


@dataclass(eq=False)
class Holder:
    """A worker's share. ``lease_bytes``: what it may have; ``sent_bytes``: the limit sent last.
    ``used_bytes``: as last reported. ``runs``: segments without an answer; ``claims``: bytes of restores
    without one. ``asked``: leases that it has not confirmed. ``waiting``: orders that wait for others to
    confirm theirs, and those behind them."""

    send: Send
    lease_bytes: int
    sent_bytes: int
    used_bytes: int = 0
    runs: int = 0
    claims: dict[int, int] = field(default_factory=dict)
    asked: int = 0
    waiting: deque[ToWorker] = field(default_factory=deque)

    @property
    def busy(self) -> bool:
        return self.runs > 0 or bool(self.claims)

    @property
    def needed_bytes(self) -> int:
        return self.used_bytes + sum(self.claims.values())


class Leases:
    """The leases of one device of ``capacity_bytes``."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._holders: list[Holder] = []

    def join(self, send: Send) -> Holder:
        """Add a worker, which holds nothing and enforces the whole device until it gets a lease."""
        lease_bytes = 0 if self._holders else self._capacity_bytes
        holder = Holder(send, lease_bytes, self._capacity_bytes)
        self._holders.append(holder)
        return holder

    def leave(self, holder: Holder) -> None:
        """Remove a worker that has ended, with all that it held."""
        self._holders.remove(holder)
        self._advance()

    def order(self, holder: Holder, message: ToWorker) -> None:
        """Send a worker's next message, as soon as its lease covers it."""
        holder.waiting.append(message)
        self._serve(holder)

    def said(self, holder: Holder, message: FromWorker, used_bytes: int) -> None:
        """Note a worker's message, and how much it holds."""
        holder.used_bytes = used_bytes
        match message:
            case Leased():
                holder.asked -= 1
                if not holder.asked:
                    holder.lease_bytes = message.limit_bytes
            case SegmentDone() | SegmentFailed() | SegmentCancelled() | RunPreempted():
                holder.runs = max(0, holder.runs - 1)
            case CopyDone() | CopyFailed():
                holder.claims.pop(message.transfer, None)
            case _:
                return
        self._advance()

    # -- parts ---------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        for holder in self._holders:
            self._serve(holder)

    def _serve(self, holder: Holder) -> None:
        while holder.waiting:
            message = holder.waiting[0]
            if isinstance(message, RunSegment | Restore) and not self._covered(holder, message):
                return
            holder.waiting.popleft()
            match message:
                case RunSegment():
                    holder.runs += 1
                case Restore():
                    holder.claims[message.transfer] = message.nbytes
                case _:
                    pass
            holder.send(message)

    def _covered(self, holder: Holder, message: RunSegment | Restore) -> bool:
        """Return whether the worker has a lease for the order; if not, others were asked to give some up."""
        others = [one for one in self._holders if one is not holder]
        if holder.runs and isinstance(message, Restore):
            return True  # it has all that no other worker needs
        wanted_bytes = self._capacity_bytes
        if isinstance(message, Restore):
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
        if one.lease_bytes <= left_bytes or one.lease_bytes <= one.used_bytes:
            return True
        if not one.busy:
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
