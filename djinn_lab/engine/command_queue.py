"""The order in which commands are carried out, and in which each core handles the other's commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from djinn_lab import jobs, memory

_Command = TypeVar("_Command")
_ORDERED = (jobs.EndSegment, jobs.DeviceQueueOrdered, jobs.PlaceSegment)
_OF_SEGMENTS = (memory.GrantSegment, memory.DeferSegment, memory.RejectSegment, memory.RejectMove)


class CommandQueue(Generic[_Command]):
    """Carry out commands in the order in which they were put in, also where one command leads to more."""

    def __init__(self, do: Callable[[_Command], None]) -> None:
        self._do = do
        self._commands: deque[_Command] = deque()
        self._doing = False

    def put(self, commands: Iterable[_Command]) -> None:
        self._commands.extend(commands)

    def drop(self, unwanted: Callable[[_Command], bool]) -> None:
        """Remove pending commands."""
        self._commands = deque(command for command in self._commands if not unwanted(command))

    def run(self) -> bool:
        """Carry out all pending commands. Return False, with nothing done, when called from within a
        command."""
        if self._doing:
            return False
        self._doing = True
        try:
            while self._commands:
                self._do(self._commands.popleft())
        finally:
            self._doing = False
        return True


def of_queue(
    commands: Sequence[jobs.Command], rank: Callable[[jobs.PlaceSegment], int]
) -> list[jobs.Command]:
    """Order the queue's commands for session memory: ended segments first, then queue orders, then
    placements. A victim's placement follows its preemptor's (``rank``: of a placement's priority)."""
    if not any(isinstance(one, _ORDERED) for one in commands):
        return list(commands)
    ordered: list[jobs.Command] = [one for one in commands if isinstance(one, jobs.EndSegment)]
    ordered += [one for one in commands if isinstance(one, jobs.DeviceQueueOrdered)]
    places = iter(sorted((one for one in commands if isinstance(one, jobs.PlaceSegment)), key=rank))
    for command in commands:
        if not isinstance(command, jobs.EndSegment | jobs.DeviceQueueOrdered):
            ordered.append(next(places) if isinstance(command, jobs.PlaceSegment) else command)
    return ordered


def about(command: memory.Command, job: str) -> bool:
    """Return whether the command answers a segment of this job. Such an answer is void once the segment is
    withdrawn."""
    return isinstance(command, _OF_SEGMENTS) and command.job == job
