"""Room for groups of gangs: each has a session of its own, which session memory knows and nobody else. What
a group that was stopped has made is its state; where it is to go on
elsewhere session memory brings it there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from djinn_lab import memory
from djinn_lab.pool.gangs.course import Order
from djinn_lab.pool.gangs.live import SEPARATOR, LiveGang, name_of
from djinn_lab.pool.ledger import Ledger
from djinn_lab.pool.placement import Placement
from djinn_lab.pool.residence import Hears, Residence

ROOM_WAIT_S = 3.0
"""So long a group waits for room on a device; then the gang does without that one."""


log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Timer:
    """``why``: what session memory said last."""

    handle: asyncio.TimerHandle
    why: str


class GroupRooms:
    """``gangs``: the live ones, by job. ``obey`` carries out what a course says. What session memory says
    about others goes to ``others``."""

    def __init__(
        self,
        ledger: Ledger,
        others: Hears,
        gangs: Mapping[str, LiveGang],
        obey: Callable[[LiveGang, Iterable[Order]], None],
    ) -> None:
        self._ledger = ledger
        self._others = others
        self._gangs = gangs
        self._obey = obey
        self._timers: dict[str, _Timer] = {}
        self._stuck: set[str] = set()
        self.residence: Residence | None = None

    # -- from gangs ----------------------------------------------------------------------------------------

    def ask(self, gang: LiveGang, group: int, device: str) -> None:
        assert self.residence is not None
        name, now_s = name_of(gang.job, group), self._ledger.clock.now_s()
        if group not in gang.opened:
            gang.opened.add(group)
            self.residence.handle(memory.SessionOpened(now_s, name, gang.record.user, passing=True))
        self.residence.handle(memory.SessionBound(now_s, name, device))
        peak_bytes = gang.peak_bytes(group)
        placement = Placement(name, gang.segment, name, peak_bytes, gang.rank, None, None, 0)
        self.residence.perform(self.residence.place(placement))

    def hold_back(self, gang: LiveGang, group: int) -> None:
        """It wants no room any more; what it has made stays."""
        assert self.residence is not None
        name = name_of(gang.job, group)
        self._stop_waiting(name)
        self.residence.handle(memory.SegmentWithdrawn(self._ledger.clock.now_s(), name))

    def close(self, gang: LiveGang, group: int) -> None:
        """It needs nothing any more."""
        assert self.residence is not None
        name = name_of(gang.job, group)
        self._stop_waiting(name)
        gang.stops.pop(group, None)
        if group in gang.opened:
            gang.opened.discard(group)
            self.residence.handle(memory.SessionClosed(self._ledger.clock.now_s(), name))

    # -- from session memory -------------------------------------------------------------------------------

    def granted(self, command: memory.GrantSegment) -> None:
        if SEPARATOR not in command.job:
            self._others.granted(command)
            return
        gang, group = self._find(command.job)
        if gang is not None and command.job not in self._stuck:
            self._stop_waiting(command.job)
            self._obey(gang, gang.course.granted(group))

    def held(self, command: memory.HoldSegment) -> None:
        """Copies come to an end; who waits for others to leave may wait for long."""
        if SEPARATOR not in command.job:
            self._others.held(command)
            return
        gang, group = self._find(command.job)
        if gang is None:
            return
        if group in gang.stops and not (command.room or command.admission):
            self._stop_waiting(command.job)
        elif command.job in self._timers:
            self._timers[command.job].why = command.reason
        else:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(ROOM_WAIT_S, self._waited_too_long, command.job)
            self._timers[command.job] = _Timer(handle, command.reason)

    def refused(self, command: memory.RefuseSegment) -> None:
        if SEPARATOR not in command.job:
            self._others.refused(command)
        else:
            self._withhold(command.job, command.message)

    def stays(self, command: memory.MoveRefused) -> None:
        """Session memory goes on to serve it where it is, where the gang does not want it: it is begun again,
        once all has been heard that session memory says now."""
        if SEPARATOR not in command.job:
            self._others.stays(command)
            return
        log.warning("part %s begins again, since it cannot be moved: %s", command.job, command.reason)
        self._stuck.add(command.job)
        asyncio.get_running_loop().call_soon(self._begin_again, command.job)

    def lost(self, command: memory.ValuesLost) -> None:
        """What a group had made is gone: it begins again when it is its turn. (Of one that runs, the gang
        hears that its device died.)"""
        if SEPARATOR not in command.session:
            self._others.lost(command)
            return
        gang, group = self._find(command.session)
        if gang is not None:
            if gang.stops.pop(group, None) is not None:
                log.warning("part %s begins again: %s", command.session, command.reason)
            gang.executed.pop(group, None)

    # -- parts ---------------------------------------------------------------------------------------------

    def _find(self, name: str) -> tuple[LiveGang | None, int]:
        job, _, text = name.partition(SEPARATOR)
        return self._gangs.get(job), int(text)

    def _waited_too_long(self, name: str) -> None:
        self._withhold(name, f"there is no room for its part: {self._timers[name].why}")

    def _withhold(self, name: str, why: str) -> None:
        self._stop_waiting(name)
        gang, group = self._find(name)
        if gang is not None:
            self._obey(gang, gang.course.withheld(group, why))

    def _begin_again(self, name: str) -> None:
        self._stuck.discard(name)
        gang, group = self._find(name)
        if gang is not None:
            self._obey(gang, gang.course.stuck(group))

    def _stop_waiting(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.handle.cancel()
