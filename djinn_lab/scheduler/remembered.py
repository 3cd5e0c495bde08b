"""Schedules and orders that were made before, for programs that differ in nothing that these show but ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from djinn_lab.scheduler.ordering import Arrangement
from djinn_lab.scheduler.schedule import ExecutionSchedule, PlannedTransfer
from djinn_lab.srg.plan_key import plan_key
from djinn_lab.srg.program import Program, encode_program

SCHEDULES_MAX = 64
"""So many schedules and orders are remembered; the least recently used go first."""
OPS_MAX = 20_000
"""Those of longer programs are not remembered: they are large."""
Made = TypeVar("Made")
_encode = msgspec.msgpack.Encoder().encode


class ScheduleUse(NamedTuple):
    """How many schedules and orders were made, and how many were known, since the process began or
    :func:`forget_schedules`."""

    made: int
    known: int


def schedule_use() -> ScheduleUse:
    """Return how often schedules and orders were known."""
    found = _made.cache_info()
    return ScheduleUse(found.misses, found.hits)


def forget_schedules() -> None:
    """Make every schedule and order anew."""
    _made.cache_clear()


def remembered_schedule(
    program: Program, settings: object, make: Callable[[Program], ExecutionSchedule]
) -> ExecutionSchedule:
    """Return what ``make`` returns for a valid program; from memory, where it was asked before for one that
    differs in ids, cells and data alone. ``settings``: all else that it depends on, as MessagePack takes it.
    Raises what ``make`` raises."""
    try:
        known = _remembered(program, ("schedule", settings), lambda one: _Scheduled.of(one, make(one)))
    except _NotRemembered as error:
        return error.schedule
    return known.with_ids_of(program)


def remembered_order(
    program: Program, settings: object, make: Callable[[Program], Arrangement]
) -> Arrangement:
    """Return an order, in the same way."""
    return _remembered(program, ("order", settings), make)


def _remembered(program: Program, settings: object, make: Callable[[Program], Made]) -> Made:
    key = None if len(program.nodes) > OPS_MAX else _key(program, settings)
    if key is None:
        return make(program)
    made: Made = _made(_Request(key, program, make))
    return made


def _key(program: Program, settings: object) -> bytes | None:
    """Return a key of all that a schedule shows but ids, None for a program without a plan key."""
    structure = plan_key(encode_program(program))
    if structure is None:
        return None
    calls: dict[int, int] = {}
    scopes = [
        (scope.module, calls.setdefault(scope.call, len(calls)), scope.line, scope.phase)
        for scope in program.scopes
    ]
    scalars = [node.scalars for node in program.nodes]
    material = (structure, scopes, scalars, program.rng_state is not None, settings)
    return hashlib.blake2b(_encode(material), digest_size=16).digest()


class _Request:
    """Equal to requests of the same key. The program goes once it was used."""

    def __init__(self, key: bytes, program: Program, make: Callable[[Program], object]) -> None:
        self.key = key
        self._work: tuple[Program, Callable[[Program], object]] | None = (program, make)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Request) and self.key == other.key

    def fulfil(self) -> object:
        assert self._work is not None
        (program, make), self._work = self._work, None
        return make(program)


@lru_cache(SCHEDULES_MAX)
def _made(request: _Request) -> Any:
    return request.fulfil()


class _Scheduled(NamedTuple):
    """``uploads``: for each upload, the place of its value among the sources. Fetches are in their own
    order."""

    schedule: ExecutionSchedule
    uploads: tuple[int, ...]

    @classmethod
    def of(cls, program: Program, schedule: ExecutionSchedule) -> _Scheduled:
        if schedule.offload is not None:
            raise _NotRemembered(schedule)
        place_of = {source.value: place for place, source in enumerate(program.sources)}
        uploads = [one.value for one in schedule.transfers if one.direction == "upload"]
        return cls(schedule, tuple(place_of[value] for value in uploads))

    def with_ids_of(self, program: Program) -> ExecutionSchedule:
        """Return the schedule with the program's own values in its transfers."""
        values = [*(program.sources[place].value for place in self.uploads), *program.fetch]
        transfers = tuple(
            PlannedTransfer(value, one.direction, one.nbytes, one.start_s, one.end_s, one.node)
            for value, one in zip(values, self.schedule.transfers, strict=True)
        )
        return msgspec.structs.replace(self.schedule, transfers=transfers)


class _NotRemembered(Exception):
    """Of storages that are used next at the same time, ids decide which one is offloaded."""

    def __init__(self, schedule: ExecutionSchedule) -> None:
        self.schedule = schedule
