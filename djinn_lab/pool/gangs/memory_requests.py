"""Memory requests of gangs' groups. What a stopped group made stays in its session, and moves with it where
the group resumes on another device."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from djinn_lab import engine, memory
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.gangs.running import SEPARATOR, RunningGang, name_of
from djinn_lab.pool.gangs.state_machine import Order

MEMORY_WAIT_S = 3.0
"""A group waits so long for memory on a device; then the gang runs without that device."""


log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Timer:
    """``why``: what session memory said last."""

    handle: asyncio.TimerHandle
    why: str


class GroupMemoryRequests:
    """Request and give back memory for groups. ``handle``: handles an event with the engine. ``gangs``: the
    running ones, by job. ``obey`` carries out a gang's orders."""

    def __init__(
        self,
        core: JournaledEngine,
        handle: Callable[[engine.Event], None],
        gangs: Mapping[str, RunningGang],
        obey: Callable[[RunningGang, Iterable[Order]], None],
    ) -> None:
        self._core = core
        self._handle = handle
        self._gangs = gangs
        self._obey = obey
        self._timers: dict[str, _Timer] = {}
        self._stuck: set[str] = set()

    # -- from gangs ----------------------------------------------------------------------------------------

    def ask(self, gang: RunningGang, group: int, device: str) -> None:
        gang.opened.add(group)
        asked = engine.PartMemoryRequested(
            at_s=self._now_s(),
            part=name_of(gang.job, group),
            user=gang.record.user,
            device=device,
            segment=gang.segment,
            peak_bytes=gang.peak_bytes(group),
            rank=gang.rank,
        )
        self._handle(asked)

    def withdraw(self, gang: RunningGang, group: int) -> None:
        """Withdraw a group's request; what the group made stays."""
        name = name_of(gang.job, group)
        self._stop_waiting(name)
        self._handle(engine.PartMemoryWithdrawn(self._now_s(), name))

    def close(self, gang: RunningGang, group: int) -> None:
        """Close a group's session."""
        name = name_of(gang.job, group)
        self._stop_waiting(name)
        gang.stops.pop(group, None)
        if group in gang.opened:
            gang.opened.discard(group)
            self._handle(engine.PartMemoryReleased(self._now_s(), name))

    # -- from the engine -----------------------------------------------------------------------------------

    def answered(self, answer: engine.PartMemoryAnswer) -> None:
        match answer:
            case engine.PartMemoryGranted():
                self._granted(answer)
            case engine.PartMemoryDeferred():
                self._deferred(answer)
            case engine.PartMemoryRejected() if answer.immovable:
                self._immovable(answer)
            case engine.PartMemoryRejected():
                self._withhold(answer.part, answer.message)

    def _granted(self, granted: engine.PartMemoryGranted) -> None:
        gang, group = self._find(granted.part)
        if gang is not None and granted.part not in self._stuck:
            self._stop_waiting(granted.part)
            self._obey(gang, gang.machine.granted(group))

    def _deferred(self, deferred: engine.PartMemoryDeferred) -> None:
        """Limit the wait for memory: a copy ends soon, an eviction of other sessions may not."""
        gang, group = self._find(deferred.part)
        if gang is None:
            return
        if group in gang.stops and not deferred.others:
            self._stop_waiting(deferred.part)
        elif deferred.part in self._timers:
            self._timers[deferred.part].why = deferred.reason
        else:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(MEMORY_WAIT_S, self._waited_too_long, deferred.part)
            self._timers[deferred.part] = _Timer(handle, deferred.reason)

    def _immovable(self, refused: engine.PartMemoryRejected) -> None:
        """Begin a group again that cannot be moved to the device where the gang wants it, once all that
        session memory answers now has been handled."""
        log.warning("part %s begins again, since it cannot be moved: %s", refused.part, refused.message)
        self._stuck.add(refused.part)
        asyncio.get_running_loop().call_soon(self._begin_again, refused.part)

    def lost(self, command: memory.ValuesLost) -> None:
        """Begin a group again whose state was lost. (A running group's gang learns that its device
        died.)"""
        gang, group = self._find(command.session)
        if gang is not None:
            if gang.stops.pop(group, None) is not None:
                log.warning("part %s begins again: %s", command.session, command.reason)
            gang.executed.pop(group, None)

    # -- parts ---------------------------------------------------------------------------------------------

    def _find(self, name: str) -> tuple[RunningGang | None, int]:
        job, _, text = name.partition(SEPARATOR)
        return self._gangs.get(job), int(text)

    def _waited_too_long(self, name: str) -> None:
        self._withhold(name, f"its part got no memory grant: {self._timers[name].why}")

    def _withhold(self, name: str, why: str) -> None:
        self._stop_waiting(name)
        gang, group = self._find(name)
        if gang is not None:
            self._obey(gang, gang.machine.withheld(group, why))

    def _begin_again(self, name: str) -> None:
        self._stuck.discard(name)
        gang, group = self._find(name)
        if gang is not None:
            self._obey(gang, gang.machine.stuck(group))

    def _stop_waiting(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.handle.cancel()

    def _now_s(self) -> float:
        return self._core.clock.now_s()
