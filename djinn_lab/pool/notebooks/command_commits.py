"""Commands about notebooks: each is committed before it is carried out, in order.

While the database is at fault (a full disk, say) decisions wait in their order and are tried again after a
pause, and whenever another one comes. Only what is to stop stops at once, for that cannot wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from djinn_lab.jobs.batch import AttemptOutcome, Command, StartNotebook, StopNotebook
from djinn_lab.pool.database.batch import DATABASE_AT_FAULT
from djinn_lab.pool.execution.clock import Timer
from djinn_lab.pool.notebooks.messages import AttemptEnded
from djinn_lab.units import format_seconds

STORE_AGAIN_S = 5.0
Result = TypeVar("Result")

log = logging.getLogger(__name__)


class CommandBatch(NamedTuple):
    """``stored``: done when ``commands`` are in the database, or when they could not be stored at first."""

    commands: Sequence[Command]
    stored: asyncio.Future[None] | None = None


class CommandCommitter:
    """``commit`` raises SQLAlchemyError with nothing stored; ``carry_out`` does what is stored. ``ended``:
    called for attempts that end before they began."""

    def __init__(
        self,
        now_s: Callable[[], float],
        commit: Callable[[Sequence[Command]], Awaitable[None]],
        carry_out: Callable[[Command], None],
        ended: Callable[[str, AttemptEnded], None],
    ) -> None:
        self._now_s = now_s
        self._commit = commit
        self._carry_out = carry_out
        self._ended = ended
        self._coming: asyncio.Queue[CommandBatch | None] = asyncio.Queue()
        self._waiting: deque[CommandBatch] = deque()
        self._again = Timer(now_s, lambda: self._coming.put_nowait(None))
        self._failing = False

    def put(self, commands: Sequence[Command], stored: asyncio.Future[None] | None = None) -> None:
        """Queue commands behind all that were put before."""
        if commands or stored is not None:
            self._coming.put_nowait(CommandBatch(commands, stored))

    async def perform(self) -> None:
        """Commit and carry out commands for ever."""
        while True:
            decision = await self._coming.get()
            if decision is not None:
                self._waiting.append(decision)
            await self._perform_waiting()

    async def _perform_waiting(self) -> None:
        while self._waiting:
            decision = self._waiting[0]
            try:
                await self._commit(decision.commands)
            except DATABASE_AT_FAULT as error:
                self._hold(error)
                return
            except sa.exc.SQLAlchemyError as error:  # it would fail again
                log.exception("what was decided about notebooks could not be stored")
                self._waiting.popleft()
                _refuse(decision, error)
                self._do_without_storing(decision.commands, error)
                continue
            self._waiting.popleft()
            if decision.stored is not None and not decision.stored.done():  # else the caller has gone
                decision.stored.set_result(None)
            for command in decision.commands:
                self._carry_out(command)
        if self._failing:
            self._failing = False
            log.warning("what was decided about notebooks could be stored in the end")

    def _hold(self, error: sa.exc.SQLAlchemyError) -> None:
        """Try again later: none of the waiting commands is stored."""
        if not self._failing:
            self._failing = True
            pause = format_seconds(STORE_AGAIN_S)
            log.error(
                "what was decided about notebooks could not be stored, and is tried again every %s: %s",
                pause,
                _first_line(error),
            )
        for decision in self._waiting:
            _refuse(decision, error)
        stops = [
            one for decision in self._waiting for one in decision.commands if isinstance(one, StopNotebook)
        ]
        withdrawn = [
            one for stop in stops if (one := StartNotebook(stop.job, stop.attempt)) in self._starts()
        ]
        done = (*stops, *withdrawn)
        self._waiting = deque(
            CommandBatch([one for one in decision.commands if one not in done]) for decision in self._waiting
        )
        for start in withdrawn:
            self._ended(start.job, AttemptEnded(start.attempt, AttemptOutcome.STOPPED))
        for stop in stops:
            self._carry_out(stop)
        self._again.set(self._now_s() + STORE_AGAIN_S)

    def _starts(self) -> list[StartNotebook]:
        return [
            one for decision in self._waiting for one in decision.commands if isinstance(one, StartNotebook)
        ]

    def _do_without_storing(self, commands: Sequence[Command], error: sa.exc.SQLAlchemyError) -> None:
        """Give up storing commands: starts are dropped, stops are carried out anyway."""
        for command in commands:
            if isinstance(command, StopNotebook):
                self._carry_out(command)
            elif isinstance(command, StartNotebook):
                message = f"its start could not be stored: {_first_line(error)}"
                self._ended(command.job, AttemptEnded(command.attempt, AttemptOutcome.LOST, message))


async def until_stored(work: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat ``work`` until the database is not at fault, and return its result. The log says once that it
    waits. Raises any other SQLAlchemyError."""
    failing = False
    while True:
        try:
            return await work()
        except DATABASE_AT_FAULT as error:
            if not failing:
                failing = True
                log.error(
                    "batch notebooks cannot be loaded, which is tried again every %s: %s",
                    format_seconds(STORE_AGAIN_S),
                    _first_line(error),
                )
        await asyncio.sleep(STORE_AGAIN_S)


def _refuse(decision: CommandBatch, error: sa.exc.SQLAlchemyError) -> None:
    """Give the error to the waiting caller."""
    if decision.stored is not None and not decision.stored.done():
        decision.stored.set_exception(error)


def _first_line(error: sa.exc.SQLAlchemyError) -> str:
    return str(error).splitlines()[0]
