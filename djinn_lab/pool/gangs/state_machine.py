"""The state machine of a running gang: events in, orders out. No I/O, no clock.

Theory of operation
-------------------
::

    prelude ──► groups ──► epilogue ──► answered
       │          │           │
       ├──────────┴───────────┴──► stopping ──► (undo) ──► cancelled, or run whole on one device
       └──► preempting ──► preempted ──► as before, on these or other devices

The prelude and the epilogue run on the home device, in the session; groups run on any member, each in a
session of its own that needs a memory grant first. A group begins once those are done that it waits for.
Any group can run on any member, and again on another: what it reads was written to files by the prelude and
by other groups. So a gang is elastic. A member without memory for a group, or whose worker dies, leaves the
group to the others. The plan has the groups of a *lane* run one after the other: members beyond the lanes
that are left are released at once.

To preempt a gang, every running part stops between two ops, and what it made stays in its session. A part
that ends before it sees the request has ended. Once nothing runs, all devices are released at once. Resumed,
on any devices, the gang continues from those ops. A stopped group resumes on the device that holds its
session if that is a member now, else on an idle member, where its session is restored first. Groups that had
not begun run anywhere.

Until the epilogue nothing of the session has been written. When a part fails (an op raises, memory runs out),
all of it is undone and the cell runs whole on its home device: it then fails as it would have, or not at
all. A cancelled gang is undone, too."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

PartName = int | Literal["prelude", "epilogue", "undo"]
"""A group's number, or which of the parts in the session."""
Stage = Literal["prelude", "groups", "epilogue"]
Phase = Literal["new", "prelude", "groups", "epilogue", "preempting", "preempted", "stopping", "undo", "over"]
Ending = Literal["done", "whole", "cancelled"]


class RequestMemory(msgspec.Struct, frozen=True):
    """Request a memory grant for a group on a device."""

    group: int
    device: str


class RunPart(msgspec.Struct, frozen=True):
    part: PartName
    device: str


class CancelPart(msgspec.Struct, frozen=True):
    """Cancel a part at its worker, whose answer is an event."""

    part: PartName
    device: str


class PreemptPart(msgspec.Struct, frozen=True):
    """Preempt a part at its worker between two ops; the answer is an event. What it made is kept."""

    part: PartName
    device: str


class GangPreempted(msgspec.Struct, frozen=True):
    """Report that no part runs or waits for memory: the gang's devices are free."""


class WithdrawGroup(msgspec.Struct, frozen=True):
    """Withdraw a group's memory request; what the group made stays."""

    group: int


class CloseGroup(msgspec.Struct, frozen=True):
    """Close a group's session on its device."""

    group: int


class ReleaseDevice(msgspec.Struct, frozen=True):
    """Release a device that the gang does not need any more."""

    device: str


class EndGang(msgspec.Struct, frozen=True):
    """End the gang. ``done``: the epilogue has the results. ``whole``: run the cell on one device; ``why``:
    the reason, for its user. ``cancelled``: nothing of it exists."""

    how: Ending
    why: str = ""


Order = (
    RequestMemory
    | RunPart
    | CancelPart
    | PreemptPart
    | GangPreempted
    | WithdrawGroup
    | CloseGroup
    | ReleaseDevice
    | EndGang
)


class Group(msgspec.Struct, frozen=True):
    """A group: its lane, and the groups that it waits for."""

    lane: int
    after: tuple[int, ...] = ()


class GangStateMachine:
    """Decide what a gang does next. ``home``: the device that holds the session; ``members``: all devices,
    home included. ``groups``: those that are begun first come first. ``prelude``: whether there is one."""

    def __init__(self, home: str, members: Sequence[str], groups: Sequence[Group], prelude: bool) -> None:
        self.home = home
        self.members = list(members)
        self.phase: Phase = "new"
        self._has_prelude = prelude
        self._groups = tuple(groups)
        self._todo: deque[int] = deque(range(len(groups)))
        self._left = set(range(len(groups)))
        self._asked: dict[int, str] = {}
        self._running: dict[PartName, str] = {}
        self._kept: dict[int, str] = {}
        self._stage: Stage = "prelude"
        self._ending: EndGang = EndGang("done")
        self._written = False
        self._out: list[Order] = []

    @property
    def running(self) -> dict[PartName, str]:
        """Map the parts that run to their devices."""
        return dict(self._running)

    @property
    def asked(self) -> dict[int, str]:
        """Map the groups that wait for a memory grant to their devices."""
        return dict(self._asked)

    @property
    def useful_devices(self) -> int:
        """Count the devices that the gang can still use at once."""
        return 1 if self._stage == "epilogue" else max(1, self._lanes_left())

    # -- events --------------------------------------------------------------------------------------------

    def begin(self) -> list[Order]:
        assert self.phase == "new"
        if self._has_prelude:
            self._enter("prelude")
            self._run("prelude", self.home)
        else:
            self._begin_groups()
        return self._orders()

    def preempt(self) -> list[Order]:
        """Preempt the gang. (One that is being stopped or undone is over soon.)"""
        if self.phase in ("prelude", "groups", "epilogue"):
            self.phase = "preempting"
            for group in list(self._asked):
                del self._asked[group]
                self._requeue(group)
            self._out += [PreemptPart(part, device) for part, device in self._running.items()]
            self._when_preempted()
        return self._orders()

    def resume(self, home: str, members: Sequence[str]) -> list[Order]:
        """Resume the gang on these devices."""
        assert self.phase == "preempted", self.phase
        self.home, self.members = home, list(members)
        self.phase = self._stage
        if self._stage == "groups":
            self._assign_groups("")
            return self._orders()
        if self._stage == "epilogue":
            self._release_all_but_home()
        self._run(self._stage, home)
        return self._orders()

    def granted(self, group: int) -> list[Order]:
        """Run a group that got its memory grant."""
        device = self._asked.pop(group, None)
        if device is not None:
            self._run(group, device)
        return self._orders()

    def withheld(self, group: int, why: str) -> list[Order]:
        """Try a group elsewhere: it got no memory grant on its device, or none soon enough."""
        device = self._asked.pop(group, None)
        if device is None:
            return []
        self._requeue(group)
        self._release(device)
        self._assign_groups(why)
        return self._orders()

    def stuck(self, group: int) -> list[Order]:
        """Begin a group again: what it made cannot be moved to its new device."""
        if self._asked.pop(group, None) is not None:
            self._kept.pop(group, None)
            self._requeue(group)
            self._assign_groups("")
        return self._orders()

    def done(self, part: PartName) -> list[Order]:
        if self._running.pop(part, None) is None:
            return []
        if isinstance(part, int):
            self._left.discard(part)
            self._kept.pop(part, None)
            self._out.append(CloseGroup(part))
        match self.phase:
            case "prelude":
                self._begin_groups()
            case "groups":
                self._assign_groups("")
            case "epilogue":
                self._end()
            case "preempting" if part == "epilogue":
                self._end()
            case "preempting":
                self._stage = "groups"
                self._when_preempted()
            case "stopping":
                self._when_stopped()
            case "undo":
                self._end()
        return self._orders()

    def stopped(self, part: PartName) -> list[Order]:
        """Record that a part stopped between two ops, with what it made by then."""
        if self.phase != "preempting":
            return self.failed(part, "it was stopped")
        device = self._running.pop(part, None)
        if device is not None and isinstance(part, int):
            self._kept[part] = device
            self._todo.appendleft(part)
        self._when_preempted()
        return self._orders()

    def failed(self, part: PartName, why: str) -> list[Order]:
        """Undo the gang after a part raised, or was cancelled."""
        if self._running.pop(part, None) is None:
            return []
        if isinstance(part, int):
            self._kept.pop(part, None)
            self._out.append(CloseGroup(part))
        assert part != "undo", why
        if self.phase == "stopping":
            self._when_stopped()
        else:
            self._stop(EndGang("whole", why))
        return self._orders()

    def cancel(self) -> list[Order]:
        """Cancel the gang. (One that is being undone is over soon; a preempted one is abandoned.)"""
        if self.phase in ("stopping", "undo"):
            self._ending = EndGang("cancelled")
        elif self.phase not in ("preempted", "over"):
            self._stop(EndGang("cancelled"))
        return self._orders()

    def died(self, device: str) -> list[Order]:
        """Move the groups of a member that died to other members. (The home's loss ends the gang.)"""
        assert device != self.home or self.phase == "preempted", "with its home the whole gang is lost"
        if device in self.members:
            self.members.remove(device)
        gone = [part for part, where in (*self._running.items(), *self._asked.items()) if where == device]
        for part in gone:
            assert isinstance(part, int), f"{part} ran away from home"
            if self._asked.pop(part, None) is None:
                del self._running[part]
                self._kept.pop(part, None)
            self._requeue(part)
        if self.phase == "groups":
            self._assign_groups(f"{device} died")
        elif self.phase == "preempting":
            self._when_preempted()
        elif self.phase == "stopping":
            self._when_stopped()
        return self._orders()

    # -- steps ---------------------------------------------------------------------------------------------

    def _enter(self, stage: Stage) -> None:
        self.phase = self._stage = stage

    def _begin_groups(self) -> None:
        self._enter("groups")
        self._assign_groups("")

    def _assign_groups(self, why: str) -> None:
        """Request memory for groups on idle members. ``why``: the reason given when no member is left."""
        busy = {*self._running.values(), *self._asked.values()}
        idle = [device for device in self.members if device not in busy]
        for device in idle:
            self._ask(device, [group for group in self._ready() if self._kept.get(group) == device])
        for device in idle:
            if device not in self._asked.values():
                self._ask(
                    device, sorted(self._ready(), key=lambda group: self._kept.get(group) in self.members)
                )
        spare = len(self.members) - max(1, self._lanes_left())
        for device in reversed(idle):
            if spare > 0 and device not in self._asked.values() and device != self.home:
                self._release(device)
                spare -= 1
        if self._asked or self._running:
            return
        if self._todo:
            self._stop(EndGang("whole", why))
        else:
            self._enter("epilogue")
            self._written = True
            self._release_all_but_home()
            self._run("epilogue", self.home)

    def _ready(self) -> list[int]:
        """List the groups that could begin."""
        return [group for group in self._todo if self._left.isdisjoint(self._groups[group].after)]

    def _lanes_left(self) -> int:
        return len({self._groups[group].lane for group in self._left})

    def _ask(self, device: str, groups: Sequence[int]) -> None:
        """Request memory on a device for the first of these groups."""
        if groups:
            self._todo.remove(groups[0])
            self._asked[groups[0]] = device
            self._out.append(RequestMemory(groups[0], device))

    def _requeue(self, group: int) -> None:
        """Run a group later, from where it was stopped or from its beginning."""
        self._out.append(WithdrawGroup(group) if group in self._kept else CloseGroup(group))
        self._todo.appendleft(group)

    def _release_all_but_home(self) -> None:
        for device in list(self.members):
            if device != self.home:
                self._release(device)

    def _release(self, device: str) -> None:
        self.members.remove(device)
        if device != self.home:
            self._out.append(ReleaseDevice(device))

    def _stop(self, ending: EndGang) -> None:
        self.phase, self._ending = "stopping", ending
        still = [group for group in self._kept if group not in self._running]
        self._out += [CloseGroup(group) for group in dict.fromkeys((*self._asked, *still))]
        self._asked.clear()
        self._kept.clear()
        for part, device in self._running.items():
            self._out.append(CancelPart(part, device))
        self._when_stopped()

    def _when_preempted(self) -> None:
        if not self._running and self.phase == "preempting":
            self.phase, self.members = "preempted", []
            self._out.append(GangPreempted())

    def _when_stopped(self) -> None:
        if self._running:
            return
        self._release_all_but_home()
        if self._written:
            self.phase = "undo"
            self._run("undo", self.home)
        else:
            self._end()

    def _end(self) -> None:
        self.phase = "over"
        self._out.append(self._ending)

    def _run(self, part: PartName, device: str) -> None:
        self._running[part] = device
        self._out.append(RunPart(part, device))

    def _orders(self) -> list[Order]:
        out, self._out = self._out, []
        return out
