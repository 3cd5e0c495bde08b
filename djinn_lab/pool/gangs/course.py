"""What a running gang does next: events in, orders out. No I/O, no clock.

Theory of operation
-------------------
::

    prelude ──► groups ──► epilogue ──► answered
       │          │           │
       ├──────────┴───────────┴──► stopping ──► (undo) ──► cancelled, or run whole on one device
       └──► pausing ──► aside ──► as before, on these or other devices

The prelude and the epilogue run on the home device, in the session; groups run on any member, each in a
session of its own for which session memory is asked first. Any group can run on any member, and again on
another: what it reads was written to files by the prelude. So a gang is elastic by itself. A member that
session memory has no room on, or that dies, gives its group to the others; one that finds no more group to
run is given back at once.

Asked to move aside, it stops every running part between two ops; what these made stays in their sessions. A
part that ends before it sees the request has ended. Once nothing runs all devices are left at once. Started
again, on any devices, it goes on from those ops: a group that was stopped, where it lies if that is a member
now, else on one that has nothing else to do, where its session is brought first; groups that had not begun,
anywhere.

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
Phase = Literal["new", "prelude", "groups", "epilogue", "pausing", "aside", "stopping", "undo", "over"]
Ending = Literal["done", "whole", "cancelled"]


class AskRoom(msgspec.Struct, frozen=True):
    """Ask session memory for room for the group there."""

    group: int
    device: str


class RunPart(msgspec.Struct, frozen=True):
    part: PartName
    device: str


class StopPart(msgspec.Struct, frozen=True):
    """Ask the worker to stop it; its answer is an event."""

    part: PartName
    device: str


class PausePart(msgspec.Struct, frozen=True):
    """Ask the worker to stop it between two ops and to keep what it made; its answer is an event."""

    part: PartName
    device: str


class StandAside(msgspec.Struct, frozen=True):
    """Nothing of it runs, and nothing waits for room: its devices are free."""


class HoldBack(msgspec.Struct, frozen=True):
    """The group does not want room any more, where it asked for it; what it has made stays."""

    group: int


class ForgetGroup(msgspec.Struct, frozen=True):
    """The group needs nothing of the device any more: its session there is closed."""

    group: int


class GiveBack(msgspec.Struct, frozen=True):
    """The gang has no more use for this device."""

    device: str


class EndCourse(msgspec.Struct, frozen=True):
    """``done``: the epilogue has the results. ``whole``: run the cell as if it were no gang. ``why``: of
    that, for its user. ``cancelled``: nothing of it exists."""

    how: Ending
    why: str = ""


Order = AskRoom | RunPart | StopPart | PausePart | StandAside | HoldBack | ForgetGroup | GiveBack | EndCourse


class GangCourse:
    """``home``: where the session is; ``members``: all devices, home among them. ``prelude``: is there
    one?"""

    def __init__(self, home: str, members: Sequence[str], groups: int, prelude: bool) -> None:
        self.home = home
        self.members = list(members)
        self.phase: Phase = "new"
        self._has_prelude = prelude
        self._todo: deque[int] = deque(range(groups))
        self._left = set(range(groups))
        self._asked: dict[int, str] = {}
        self._running: dict[PartName, str] = {}
        self._kept: dict[int, str] = {}
        self._stage: Stage = "prelude"
        self._ending: EndCourse = EndCourse("done")
        self._written = False
        self._out: list[Order] = []

    @property
    def running(self) -> dict[PartName, str]:
        """Parts that a worker has, by where."""
        return dict(self._running)

    @property
    def asked(self) -> dict[int, str]:
        """Groups that wait for session memory."""
        return dict(self._asked)

    @property
    def useful_devices(self) -> int:
        """How many it can use at once from here."""
        return 1 if self._stage == "epilogue" else max(1, len(self._left))

    # -- events --------------------------------------------------------------------------------------------

    def begin(self) -> list[Order]:
        assert self.phase == "new"
        if self._has_prelude:
            self._enter("prelude")
            self._run("prelude", self.home)
        else:
            self._begin_groups()
        return self._orders()

    def pause(self) -> list[Order]:
        """It shall move aside. (Being stopped or undone, it is over soon.)"""
        if self.phase in ("prelude", "groups", "epilogue"):
            self.phase = "pausing"
            for group in list(self._asked):
                del self._asked[group]
                self._put_back(group)
            self._out += [PausePart(part, device) for part, device in self._running.items()]
            self._when_aside()
        return self._orders()

    def resume(self, home: str, members: Sequence[str]) -> list[Order]:
        """It goes on with these devices."""
        assert self.phase == "aside", self.phase
        self.home, self.members = home, list(members)
        self.phase = self._stage
        if self._stage == "groups":
            self._hand_out("")
            return self._orders()
        if self._stage == "epilogue":
            self._leave_all_but_home()
        self._run(self._stage, home)
        return self._orders()

    def granted(self, group: int) -> list[Order]:
        """Session memory has room for the group."""
        device = self._asked.pop(group, None)
        if device is not None:
            self._run(group, device)
        return self._orders()

    def withheld(self, group: int, why: str) -> list[Order]:
        """Session memory has no room for it there, or none soon enough."""
        device = self._asked.pop(group, None)
        if device is None:
            return []
        self._put_back(group)
        self._leave(device)
        self._hand_out(why)
        return self._orders()

    def stuck(self, group: int) -> list[Order]:
        """What it has made cannot be brought to the device that asked for it: it begins again."""
        if self._asked.pop(group, None) is not None:
            self._kept.pop(group, None)
            self._put_back(group)
            self._hand_out("")
        return self._orders()

    def done(self, part: PartName) -> list[Order]:
        if self._running.pop(part, None) is None:
            return []
        if isinstance(part, int):
            self._left.discard(part)
            self._kept.pop(part, None)
            self._out.append(ForgetGroup(part))
        match self.phase:
            case "prelude":
                self._begin_groups()
            case "groups":
                self._hand_out("")
            case "epilogue":
                self._end()
            case "pausing" if part == "epilogue":
                self._end()
            case "pausing":
                self._stage = "groups"
                self._when_aside()
            case "stopping":
                self._when_still()
            case "undo":
                self._end()
        return self._orders()

    def stopped(self, part: PartName) -> list[Order]:
        """Between two ops, with what it made by then."""
        if self.phase != "pausing":
            return self.failed(part, "it was stopped")
        device = self._running.pop(part, None)
        if device is not None and isinstance(part, int):
            self._kept[part] = device
            self._todo.appendleft(part)
        self._when_aside()
        return self._orders()

    def failed(self, part: PartName, why: str) -> list[Order]:
        """It raised, or was stopped for good."""
        if self._running.pop(part, None) is None:
            return []
        if isinstance(part, int):
            self._kept.pop(part, None)
            self._out.append(ForgetGroup(part))
        assert part != "undo", why
        if self.phase == "stopping":
            self._when_still()
        else:
            self._stop(EndCourse("whole", why))
        return self._orders()

    def cancel(self) -> list[Order]:
        """Nothing of it is wanted. (Being undone, it is over soon; one that stands aside is abandoned.)"""
        if self.phase in ("stopping", "undo"):
            self._ending = EndCourse("cancelled")
        elif self.phase not in ("aside", "over"):
            self._stop(EndCourse("cancelled"))
        return self._orders()

    def died(self, device: str) -> list[Order]:
        """A member that is not the home: its group runs on another."""
        assert device != self.home or self.phase == "aside", "with its home the whole gang is lost"
        if device in self.members:
            self.members.remove(device)
        gone = [part for part, where in (*self._running.items(), *self._asked.items()) if where == device]
        for part in gone:
            assert isinstance(part, int), f"{part} ran away from home"
            if self._asked.pop(part, None) is None:
                del self._running[part]
                self._kept.pop(part, None)
            self._put_back(part)
        if self.phase == "groups":
            self._hand_out(f"{device} died")
        elif self.phase == "pausing":
            self._when_aside()
        elif self.phase == "stopping":
            self._when_still()
        return self._orders()

    # -- steps ---------------------------------------------------------------------------------------------

    def _enter(self, stage: Stage) -> None:
        self.phase = self._stage = stage

    def _begin_groups(self) -> None:
        self._enter("groups")
        self._hand_out("")

    def _hand_out(self, why: str) -> None:
        """Request memory for groups on idle members. ``why``: the reason given when no member is left."""
        busy = {*self._running.values(), *self._asked.values()}
        idle = [device for device in self.members if device not in busy]
        for device in idle:
            self._ask(device, [group for group in self._todo if self._kept.get(group) == device])
        for device in idle:
            if device not in self._asked.values():
                others = (*self._todo,)
                self._ask(device, sorted(others, key=lambda group: self._kept.get(group) in self.members))
        for device in idle:
            if device not in self._asked.values() and device != self.home:
                self._leave(device)
        if self._asked or self._running:
            return
        if self._todo:
            self._stop(EndCourse("whole", why))
        else:
            self._enter("epilogue")
            self._written = True
            self._run("epilogue", self.home)

    def _ask(self, device: str, groups: Sequence[int]) -> None:
        """Room there for the first of these."""
        if groups:
            self._todo.remove(groups[0])
            self._asked[groups[0]] = device
            self._out.append(AskRoom(groups[0], device))

    def _put_back(self, group: int) -> None:
        """It is to be run later, from where it was stopped or from its beginning."""
        self._out.append(HoldBack(group) if group in self._kept else ForgetGroup(group))
        self._todo.appendleft(group)

    def _leave_all_but_home(self) -> None:
        for device in list(self.members):
            if device != self.home:
                self._leave(device)

    def _leave(self, device: str) -> None:
        self.members.remove(device)
        if device != self.home:
            self._out.append(GiveBack(device))

    def _stop(self, ending: EndCourse) -> None:
        self.phase, self._ending = "stopping", ending
        still = [group for group in self._kept if group not in self._running]
        self._out += [ForgetGroup(group) for group in dict.fromkeys((*self._asked, *still))]
        self._asked.clear()
        self._kept.clear()
        for part, device in self._running.items():
            self._out.append(StopPart(part, device))
        self._when_still()

    def _when_aside(self) -> None:
        if not self._running and self.phase == "pausing":
            self.phase, self.members = "aside", []
            self._out.append(StandAside())

    def _when_still(self) -> None:
        if self._running:
            return
        self._leave_all_but_home()
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
