"""The core: all notebooks, and what is done with them at every event."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import assert_never

from msgspec.structs import replace

from djinn_lab.jobs.batch import messages
from djinn_lab.jobs.batch.messages import Command, NotebookEnded, Outcome
from djinn_lab.jobs.batch.notebook import Notebook, Stopping
from djinn_lab.jobs.batch.restarts import Restart
from djinn_lab.jobs.batch.states import TRANSITIONS, Move, NotebookState
from djinn_lab.jobs.states import RANKS, IllegalEvent
from djinn_lab.jobs.terms import Terms
from djinn_lab.units import format_seconds

WAITING_MAX = 1000
OVER_KEPT_MAX = 200
SERVER_DIED = "the pool server ended while it ran"


class Notebooks:
    """``slots``: runners at once. An event that cannot be raises IllegalEvent and changes nothing."""

    def __init__(self, slots: int) -> None:
        assert slots >= 1
        self.slots = slots
        self._all: dict[str, Notebook] = {}
        self._number = 0
        self._commands: list[Command] = []

    def handle(self, event: messages.Event) -> list[Command]:
        """What to do now, in this order."""
        self._commands = []
        match event:
            case messages.NotebookAccepted():
                self._accepted(event)
            case messages.NotebookProgressed():
                running = self._running(event.job, event.attempt)
                self._all[event.job] = replace(running, cell=event.cell, cells=event.cells)
            case messages.NotebookEnded():
                self._ended(event)
            case messages.CellEnded():
                self._job_ended(event.job, event.done, event.state, event.at_s)
            case messages.CancelAsked():
                self._cancel(event)
            case messages.TimePassed():
                self._time_passed(event.at_s)
            case messages.ServerStarted():
                self._server_started(event)
            case _:
                assert_never(event)
        self._fill_slots(event.at_s)
        return self._commands

    def admit(self, asked: messages.Submission) -> Notebook:
        """What would be accepted. Raises IllegalEvent for what cannot be."""
        _check(asked)
        if sum(not one.over for one in self) >= WAITING_MAX:
            raise IllegalEvent(f"{WAITING_MAX} notebooks wait or run already, which is the most", "client")
        waits_for = []
        for name in dict.fromkeys(asked.after):
            other = self._all.get(name)
            if other is None and name not in asked.cells:
                raise IllegalEvent(f"it comes after {name}, which is unknown", "client")
            if other is not None and other.over and other.state is not NotebookState.DONE:
                raise IllegalEvent(f"it comes after {name}, which is {other.state}", "client")
            if other is None or not other.over:
                waits_for.append(name)
        self._number += 1
        return Notebook(
            asked.job,
            self._number,
            asked.user,
            asked.name,
            asked.at_s,
            asked.priority,
            tuple(waits_for),
            asked.restart,
            asked.timeout_s,
            None if asked.deadline_s is None else asked.at_s + asked.deadline_s,
        )

    def __iter__(self) -> Iterator[Notebook]:
        """In the order of their arrival."""
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, job: str) -> Notebook | None:
        return self._all.get(job)

    @property
    def running(self) -> list[Notebook]:
        return [one for one in self if one.state is NotebookState.RUNNING]

    @property
    def awaited(self) -> set[str]:
        """Jobs that notebooks wait for and that are none of them."""
        return {name for one in self for name in one.waits_for if not one.over and name not in self._all}

    def line(self) -> list[Notebook]:
        """Those that wait for nothing but a slot, in the order in which they would get one if nobody ended
        and nobody came."""
        running: dict[str, int] = {}
        served_s: dict[str, float] = {}
        waiting: dict[str, list[Notebook]] = {}
        for one in self:
            if one.state is NotebookState.RUNNING:
                running[one.user] = running.get(one.user, 0) + 1
            elif one.state is NotebookState.QUEUED and not one.waits_for:
                waiting.setdefault(one.user, []).append(one)
            if one.started_at_s is not None:
                served_s[one.user] = max(one.started_at_s, served_s.get(one.user, -math.inf))

        def key(user: str, taken: int) -> tuple[int, int, float, int, str]:
            best = waiting[user][-1]
            turn = math.inf if taken else served_s.get(user, -math.inf)
            return best.rank, running.get(user, 0) + taken, turn, best.number, user

        for own in waiting.values():
            own.sort(key=lambda one: (one.rank, one.number), reverse=True)
        heads = [(key(user, 0), 0) for user in waiting]
        heapq.heapify(heads)
        ordered = []
        while heads:
            (*_, user), taken = heapq.heappop(heads)
            assert isinstance(user, str)
            ordered.append(waiting[user].pop())
            if waiting[user]:
                heapq.heappush(heads, (key(user, taken + 1), taken + 1))
        return ordered

    def wake_at_s(self) -> float | None:
        """When TimePassed has something to do, None: never, as it looks now."""
        moments = [one.retry_at_s for one in self if one.state is NotebookState.BACKING_OFF]
        moments += [one.ends_at_s for one in self.running if one.stopping is None]
        return min((moment for moment in moments if moment is not None), default=None)

    # -- events --------------------------------------------------------------------------------------------

    def _accepted(self, event: messages.NotebookAccepted) -> None:
        notebook = event.notebook
        if notebook.job in self._all or notebook.over or notebook.attempts:
            raise IllegalEvent(f"notebook {notebook.job} is not new", "pool")
        self._put(notebook)
        self._settle_dependencies(notebook, event.at_s)
        over = [one for one in self if one.over]
        for old in over[: max(0, len(over) - OVER_KEPT_MAX)]:
            del self._all[old.job]
            self._commands.append(messages.ForgetNotebook(old.job))

    def _settle_dependencies(self, notebook: Notebook, at_s: float) -> None:
        """Of those that it comes after, some may have ended meanwhile."""
        for name in notebook.waits_for:
            other = self._all.get(name)
            if other is not None and other.over:
                self._job_ended(name, other.state is NotebookState.DONE, other.state, at_s)

    def _ended(self, event: NotebookEnded) -> None:
        notebook = self._running(event.job, event.attempt)
        succeeded = event.outcome is Outcome.DONE
        cells = event.cells or notebook.cells
        cell = cells if succeeded else event.cell or notebook.cell
        failures = 0 if succeeded else notebook.failures + 1
        notebook = replace(notebook, cell=cell, cells=cells, failures=failures)
        stopping = notebook.stopping
        if stopping is not None and stopping.cancelled:
            if succeeded:
                self._end(notebook, Move.FINISH, event.at_s, "")
            else:
                self._end(notebook, Move.CANCEL, event.at_s, f"cancelled {stopping.message}")
            return
        message = event.message
        if stopping is not None and not succeeded:
            message = stopping.message
        if notebook.restart.again(succeeded, notebook.attempts):
            retry_at_s = event.at_s + notebook.restart.delay_s(notebook.failures)
            self._move(
                notebook,
                Move.BACK_OFF,
                reason=message,
                retry_at_s=retry_at_s,
                finished_at_s=event.at_s,
                stopping=None,
            )
        elif succeeded:
            self._end(notebook, Move.FINISH, event.at_s, "")
        else:
            self._end(notebook, Move.FAIL, event.at_s, message)

    def _cancel(self, event: messages.CancelAsked) -> None:
        notebook = self._all.get(event.job)
        if notebook is None:
            raise IllegalEvent(f"there is no notebook {event.job}", "client")
        if notebook.over:
            raise IllegalEvent(f"notebook {event.job} is already {notebook.state}", "client")
        if notebook.state is not NotebookState.RUNNING:
            self._end(notebook, Move.CANCEL, event.at_s, f"cancelled {event.message}")
            return
        asked = notebook.stopping is not None
        if not asked or (notebook.stopping and not notebook.stopping.cancelled):
            self._put(replace(notebook, stopping=Stopping(True, event.message)))
        if not asked:
            self._commands.append(messages.StopNotebook(notebook.job, notebook.attempts))

    def _time_passed(self, at_s: float) -> None:
        for notebook in list(self):
            if notebook.state is NotebookState.BACKING_OFF and (notebook.retry_at_s or 0.0) <= at_s:
                self._move(notebook, Move.DUE, retry_at_s=None)
            elif notebook.ends_at_s is not None and notebook.ends_at_s <= at_s and notebook.stopping is None:
                assert notebook.timeout_s is not None
                told = f"stopped after its time limit of {format_seconds(notebook.timeout_s)}"
                self._put(replace(notebook, stopping=Stopping(False, told)))
                self._commands.append(messages.StopNotebook(notebook.job, notebook.attempts))

    def _server_started(self, event: messages.ServerStarted) -> None:
        if self._all:
            raise IllegalEvent("the server has started already", "pool")
        attempts = {(one.job, one.attempts) for one in event.notebooks if one.state is NotebookState.RUNNING}
        if not {(ended.job, ended.attempt) for ended in event.ended} <= attempts:
            raise IllegalEvent("an attempt ended that did not run", "pool")
        for notebook in sorted(event.notebooks, key=lambda one: one.number):
            self._all[notebook.job] = notebook
            self._number = max(self._number, notebook.number)
        for ended in event.ended:
            self._ended(ended)
        for notebook in self.running:
            self._lost_with_the_server(notebook, event.at_s)
        for notebook in [one for one in self if not one.over]:
            self._settle_dependencies(notebook, event.at_s)

    def _lost_with_the_server(self, notebook: Notebook, at_s: float) -> None:
        stopping = notebook.stopping
        if stopping is not None and stopping.cancelled:
            self._end(notebook, Move.CANCEL, at_s, f"cancelled {stopping.message}")
        elif notebook.restart.policy is Restart.NEVER:
            told = f"{SERVER_DIED}; it is not run again because its restart policy is never"
            self._end(notebook, Move.FAIL, at_s, told)
        elif notebook.attempts >= notebook.restart.attempts_max:
            told = f"{SERVER_DIED}; it has been started {notebook.attempts} times, which is the most"
            self._end(notebook, Move.FAIL, at_s, told)
        else:
            self._move(notebook, Move.REQUEUE, reason=SERVER_DIED, stopping=None)

    # -- moves ---------------------------------------------------------------------------------------------

    def _fill_slots(self, at_s: float) -> None:
        free = self.slots - len(self.running)
        if free <= 0:
            return
        for notebook in self.line()[:free]:
            attempt = notebook.attempts + 1
            self._move(
                notebook,
                Move.START,
                attempts=attempt,
                started_at_s=at_s,
                finished_at_s=None,
                reason="",
                cell=0,
                cells=0,
            )
            self._commands.append(messages.StartNotebook(notebook.job, attempt))

    def _running(self, job: str, attempt: int) -> Notebook:
        notebook = self._all.get(job)
        if notebook is None or notebook.state is not NotebookState.RUNNING or notebook.attempts != attempt:
            raise IllegalEvent(f"notebook {job} has no running attempt {attempt}", "pool")
        return notebook

    def _end(self, notebook: Notebook, move: Move, at_s: float, reason: str) -> None:
        self._move(notebook, move, reason=reason, finished_at_s=at_s, retry_at_s=None, stopping=None)
        ended = self._all[notebook.job]
        self._job_ended(ended.job, ended.state is NotebookState.DONE, ended.state, at_s)

    def _job_ended(self, job: str, done: bool, state: str, at_s: float) -> None:
        """Those that wait for it go on, or end with it, and those that wait for them."""
        ended = [(job, done, state)]
        while ended:
            job, done, state = ended.pop()
            for waiting in [one for one in self if job in one.waits_for and not one.over]:
                if done:
                    left = tuple(name for name in waiting.waits_for if name != job)
                    self._put(replace(waiting, waits_for=left))
                else:
                    told = f"{job}, which it comes after, is {state}"
                    self._move(waiting, Move.CANCEL, reason=told, finished_at_s=at_s)
                    ended.append((waiting.job, False, NotebookState.CANCELLED))

    def _move(self, notebook: Notebook, move: Move, **changes: object) -> None:
        state = TRANSITIONS[(notebook.state, move)]
        self._put(replace(notebook, state=state, **changes))

    def _put(self, notebook: Notebook) -> None:
        self._all[notebook.job] = notebook
        self._commands.append(messages.SaveNotebook(notebook))


def _check(event: messages.Submission) -> None:
    """Raises IllegalEvent for what no notebook can ask."""
    if event.priority not in RANKS:
        raise IllegalEvent(f"priority {event.priority!r} is none of {', '.join(RANKS)}", "client")
    terms = Terms(after=event.after, deadline_s=event.deadline_s, timeout_s=event.timeout_s)
    problem = terms.problem() or event.restart.problem()
    if problem is not None:
        raise IllegalEvent(f"it asks for {problem}", "client")
