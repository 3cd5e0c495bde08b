"""What a running gang does next: events in, orders out. No I/O, no clock.

Theory of operation
-------------------
::

    prelude ──► groups ──► epilogue ──► answered
       │          │           │
       └──────────┴───────────┴──► stopping ──► (undo) ──► cancelled, or run whole on one device

The prelude and the epilogue run on the home device, in the session; groups run on any member, each in a
session of its own for which session memory is asked first. Any group can run on any member, and again on
another: what it reads was written to files by the prelude. So a gang is elastic by itself. A member that
session memory has no room on, or that dies, gives its group to the others; one that finds no more group to
run is given back at once.

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
Phase = Literal["new", "prelude", "groups", "epilogue", "stopping", "undo", "over"]
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


Order = AskRoom | RunPart | StopPart | ForgetGroup | GiveBack | EndCourse


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

    # -- events --------------------------------------------------------------------------------------------

    def begin(self) -> list[Order]:
        assert self.phase == "new"
        if self._has_prelude:
            self.phase = "prelude"
            self._run("prelude", self.home)
        else:
            self._begin_groups()
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
        self._out.append(ForgetGroup(group))
        self._todo.appendleft(group)
        self._leave(device)
        self._hand_out(why)
        return self._orders()

    def done(self, part: PartName) -> list[Order]:
        if self._running.pop(part, None) is None:
            return []
        if isinstance(part, int):
            self._left.discard(part)
            self._out.append(ForgetGroup(part))
        match self.phase:
            case "prelude":
                self._begin_groups()
            case "groups":
                self._hand_out("")
            case "epilogue":
                self._end()
            case "stopping":
                self._when_still()
            case "undo":
                self._end()
        return self._orders()

    def failed(self, part: PartName, why: str) -> list[Order]:
        """It raised, or was stopped."""
        if self._running.pop(part, None) is None:
            return []
        if isinstance(part, int):
            self._out.append(ForgetGroup(part))
        assert part != "undo", why
        if self.phase == "stopping":
            self._when_still()
        else:
            self._stop(EndCourse("whole", why))
        return self._orders()

    def cancel(self) -> list[Order]:
        """Nothing of it is wanted. (Being undone, it is over soon.)"""
        if self.phase in ("stopping", "undo"):
            self._ending = EndCourse("cancelled")
        elif self.phase != "over":
            self._stop(EndCourse("cancelled"))
        return self._orders()

    def died(self, device: str) -> list[Order]:
        """A member that is not the home: its group runs on another."""
        assert device != self.home, "with its home the whole gang is lost"
        if device in self.members:
            self.members.remove(device)
        gone = [part for part, where in (*self._running.items(), *self._asked.items()) if where == device]
        for part in gone:
            assert isinstance(part, int), f"{part} ran away from home"
            self._running.pop(part, None)
            self._asked.pop(part, None)
            self._out.append(ForgetGroup(part))
            self._todo.appendleft(part)
        if self.phase == "groups":
            self._hand_out(f"{device} died")
        elif self.phase == "stopping":
            self._when_still()
        return self._orders()

    # -- steps ---------------------------------------------------------------------------------------------

    def _begin_groups(self) -> None:
        self.phase = "groups"
        self._hand_out("")

    def _hand_out(self, why: str) -> None:
        """``why``: what the last member is not used for, if nobody is left."""
        busy = {*self._running.values(), *self._asked.values()}
        for device in list(self.members):
            if device in busy:
                continue
            if self._todo:
                group = self._todo.popleft()
                self._asked[group] = device
                self._out.append(AskRoom(group, device))
            elif device != self.home:
                self._leave(device)
        if self._asked or self._running:
            return
        if self._todo:
            self._stop(EndCourse("whole", why))
        else:
            self.phase = "epilogue"
            self._written = True
            self._run("epilogue", self.home)

    def _leave(self, device: str) -> None:
        self.members.remove(device)
        if device != self.home:
            self._out.append(GiveBack(device))

    def _stop(self, ending: EndCourse) -> None:
        self.phase, self._ending = "stopping", ending
        for group in self._asked:
            self._out.append(ForgetGroup(group))
        self._asked.clear()
        for part, device in self._running.items():
            self._out.append(StopPart(part, device))
        self._when_still()

    def _when_still(self) -> None:
        if self._running:
            return
        for device in list(self.members):
            if device != self.home:
                self._leave(device)
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
