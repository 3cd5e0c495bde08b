"""Commands, one after the other, and the order in which the cores hear of each other's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from djinn_lab import jobs, memory

_Command = TypeVar("_Command")
_OF_SEGMENTS = (memory.GrantSegment, memory.HoldSegment, memory.RefuseSegment, memory.MoveRefused)


class InTurn(Generic[_Command]):
    """One is done after the other, in the order in which they were put in, even where doing one leads to
    more."""

    def __init__(self, do: Callable[[_Command], None]) -> None:
        self._do = do
        self._commands: deque[_Command] = deque()
        self._doing = False

    def put(self, commands: Iterable[_Command]) -> None:
        self._commands.extend(commands)

    def drop(self, unwanted: Callable[[_Command], bool]) -> None:
        """Those that are not done yet."""
        self._commands = deque(command for command in self._commands if not unwanted(command))

    def run(self) -> bool:
        """Until none is left; False, with nothing done, from within another one."""
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
    """Memory hears first who wants nothing any more, of an order before it is asked for who is in it, and of
    who moves aside after whom it does so for (``rank``: of its priority)."""
    ordered: list[jobs.Command] = [one for one in commands if isinstance(one, jobs.EndSegment)]
    ordered += [one for one in commands if isinstance(one, jobs.LineOrdered)]
    places = iter(sorted((one for one in commands if isinstance(one, jobs.PlaceSegment)), key=rank))
    for command in commands:
        if not isinstance(command, jobs.EndSegment | jobs.LineOrdered):
            ordered.append(next(places) if isinstance(command, jobs.PlaceSegment) else command)
    return ordered


def about(command: memory.Command, job: str) -> bool:
    """Is it an answer for a segment of this job? It counts for nothing once that is withdrawn."""
    return isinstance(command, _OF_SEGMENTS) and command.job == job
