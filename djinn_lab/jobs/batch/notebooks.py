"""The core: all notebooks, and the handling of every event."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec.structs import replace

from djinn_lab.events import IllegalEvent
from djinn_lab.jobs import conditions, resources
from djinn_lab.jobs.batch import messages
from djinn_lab.jobs.batch.messages import AttemptOutcome, Command, NotebookEnded
from djinn_lab.jobs.batch.notebook import BatchNotebook, Stopping, forecast_notebook
from djinn_lab.jobs.batch.restarts import Restart
from djinn_lab.jobs.batch.states import TRANSITIONS, NotebookState, NotebookTransition
from djinn_lab.jobs.conditions import DependencyResults, DependencyState
from djinn_lab.jobs.machine.dependencies import CHECKPOINTS_MAX
from djinn_lab.jobs.messages import CheckpointAnnounced, DataPublished
from djinn_lab.units import format_seconds

WAITING_MAX = 1000
OVER_KEPT_MAX = 200
SERVER_DIED = "the pool server ended while it ran"


class Notebooks:
    """All batch notebooks of a pool. ``slots``: runners at once. An event that cannot happen raises
    IllegalEvent and changes nothing."""

    def __init__(self, slots: int) -> None:
        assert slots >= 1
        self.slots = slots
        self._all: dict[str, BatchNotebook] = {}
        self._number = 0
        self._announced: dict[str, tuple[str, ...]] = {}
        self._commands: list[Command] = []

    def handle(self, event: messages.Event) -> list[Command]:
        """Apply one event; return the commands in their order."""
        self._commands = []
        match event:
            case messages.NotebookAccepted():
                self._accepted(event)
            case messages.NotebookProgressed():
                running = self._running(event.job, event.attempt)
                self._all[event.job] = replace(running, cell=event.cell, cells=event.cells)
            case messages.NotebookEnded():
                self._ended(event)
            case messages.CellJobEnded():
                self._job_ended(event.job, event.state, event.checkpoints, event.at_s)
            case CheckpointAnnounced():
                self._announce(event)
            case DataPublished():
                for one in self._waiting_for_dependencies():
                    if conditions.same_project(one.account or one.user, event.account):
                        self._update_dependencies(one, one.waiting.published(event.name), event.at_s)
            case messages.CancelAsked():
                self._cancel(event)
            case messages.TimePassed():
                self._time_passed(event.at_s)
            case messages.ServerStarted():
                self._server_started(event)
            case _:
                assert_never(event)
        if self._announced:
            awaited = self.awaited
            self._announced = {job: names for job, names in self._announced.items() if job in awaited}
        self._fill_slots(event.at_s)
        return self._commands

    def admit(self, asked: messages.Submission) -> BatchNotebook:
        """Return the notebook that would be accepted. Raises IllegalEvent for a submission that must be
        rejected."""
        if (problem := asked.problem()) is not None:
            raise IllegalEvent(problem, "client")
        if sum(not one.over for one in self) >= WAITING_MAX:
            raise IllegalEvent(f"{WAITING_MAX} notebooks wait or run already, which is the most", "client")
        waiting = DependencyState(
            tuple(map(str, conditions.parsed(asked.after))), DependencyResults(asked.after_count)
        )
        for text in asked.met:
            waiting = waiting.meet(text)
        for cell in asked.ended:
            waiting = waiting.job_ended(cell.job, _in_reasons(cell.job), cell.state, cell.checkpoints)
        for name in sorted(conditions.jobs_in(waiting.open)):
            if name not in self._all and name not in asked.cells:
                raise IllegalEvent(f"it depends on {name}, which is unknown", "client")
        waiting = self._with_known_ends(waiting)
        if waiting.unsatisfiable is not None:
            raise IllegalEvent(f"it would wait for ever: {waiting.unsatisfiable}", "client")
        expected = forecast_notebook(self, asked.content)
        if expected is not None and asked.memory_bytes is not None:
            too_large = resources.too_large(expected.predicted, expected.earlier, asked.memory_bytes)
            if too_large is not None:
                raise IllegalEvent(f"it would fail for lack of memory: {too_large}", "client")
        self._number += 1
        return BatchNotebook(
            asked.job,
            self._number,
            asked.user,
            asked.name,
            asked.at_s,
            asked.priority,
            waiting.open,
            asked.restart,
            asked.timeout_s,
            None if asked.deadline_s is None else asked.at_s + asked.deadline_s,
            account=asked.account or asked.user,
            dependency_results=waiting.results,
            after_timeout_s=asked.after_timeout_s,
            parameters=asked.parameters,
            content=asked.content,
            predicted=None if expected is None else expected.predicted,
            target=asked.target,
            tolerates=asked.tolerates,
        )

    def __iter__(self) -> Iterator[BatchNotebook]:
        """Iterate in the order of arrival."""
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, job: str) -> BatchNotebook | None:
        return self._all.get(job)

    @property
    def running(self) -> list[BatchNotebook]:
        return [one for one in self if one.state is NotebookState.RUNNING]

    @property
    def awaited(self) -> set[str]:
        """Jobs that notebooks depend on and that are not notebooks."""
        names = {
            name for one in self._waiting_for_dependencies() for name in conditions.jobs_in(one.waits_for)
        }
        return names - self._all.keys()

    def checkpoints(self, job: str) -> tuple[str, ...]:
        """Return the announced checkpoints of a notebook, or of a cell that notebooks depend on."""
        notebook = self._all.get(job)
        return self._announced.get(job, ()) if notebook is None else notebook.checkpoints

    def queue(self) -> list[BatchNotebook]:
        """Return the notebooks that wait for nothing but a slot, in the order in which they would get one
        if none ended and none arrived."""
        running: dict[str, int] = {}
        served_s: dict[str, float] = {}
        waiting: dict[str, list[BatchNotebook]] = {}
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
        """Return when TimePassed has something to do, None: never, as it looks now."""
        moments = [one.retry_at_s for one in self if one.state is NotebookState.BACKING_OFF]
        moments += [one.ends_at_s for one in self.running if one.stopping is None]
        moments += [one.gives_up_at_s for one in self._waiting_for_dependencies()]
        return min((moment for moment in moments if moment is not None), default=None)

    # -- events --------------------------------------------------------------------------------------------

    def _accepted(self, event: messages.NotebookAccepted) -> None:
        notebook = event.notebook
        if notebook.job in self._all or notebook.over or notebook.attempts:
            raise IllegalEvent(f"notebook {notebook.job} is not new", "pool")
        self._put(notebook)
        waiting = notebook.waiting
        for text in event.met:
            waiting = waiting.meet(text)
        self._update_dependencies(notebook, self._with_known_ends(waiting), event.at_s)
        over = sorted((one for one in self if one.over), key=lambda one: one.finished_at_s or 0.0)
        for old in over[: max(0, len(over) - OVER_KEPT_MAX)]:
            del self._all[old.job]
            self._commands.append(messages.ForgetNotebook(old.job))

    def _ended(self, event: NotebookEnded) -> None:
        notebook = self._running(event.job, event.attempt)
        succeeded = event.outcome is AttemptOutcome.DONE
        cells = event.cells or notebook.cells
        cell = cells if succeeded else event.cell or notebook.cell
        failures = 0 if succeeded else notebook.failures + 1
        notebook = replace(notebook, cell=cell, cells=cells, failures=failures)
        notebook = replace(notebook, use=event.use or notebook.use)
        stopping = notebook.stopping
        if stopping is not None and stopping.cancelled:
            if succeeded:
                self._end(notebook, NotebookTransition.FINISH, event.at_s, "")
            else:
                self._end(notebook, NotebookTransition.CANCEL, event.at_s, f"cancelled {stopping.message}")
            return
        message = event.message
        if stopping is not None and not succeeded:
            message = stopping.message
        if notebook.restart.again(succeeded, notebook.attempts):
            retry_at_s = event.at_s + notebook.restart.delay_s(notebook.failures)
            self._move(
                notebook,
                NotebookTransition.BACK_OFF,
                reason=message,
                retry_at_s=retry_at_s,
                finished_at_s=event.at_s,
                stopping=None,
            )
        elif succeeded:
            self._end(notebook, NotebookTransition.FINISH, event.at_s, "")
        else:
            self._end(notebook, NotebookTransition.FAIL, event.at_s, message)

    def _cancel(self, event: messages.CancelAsked) -> None:
        notebook = self._all.get(event.job)
        if notebook is None:
            raise IllegalEvent(f"there is no notebook {event.job}", "client")
        if notebook.over:
            raise IllegalEvent(f"notebook {event.job} is already {notebook.state}", "client")
        if notebook.state is not NotebookState.RUNNING:
            self._end(notebook, NotebookTransition.CANCEL, event.at_s, f"cancelled {event.message}")
            return
        asked = notebook.stopping is not None
        if not asked or (notebook.stopping and not notebook.stopping.cancelled):
            self._put(replace(notebook, stopping=Stopping(True, event.message)))
        if not asked:
            self._commands.append(messages.StopNotebook(notebook.job, notebook.attempts))

    def _time_passed(self, at_s: float) -> None:
        for job in list(self._all):
            notebook = self._all[job]  # as the ends of others left it
            if notebook.state is NotebookState.BACKING_OFF and (notebook.retry_at_s or 0.0) <= at_s:
                self._move(notebook, NotebookTransition.DUE, retry_at_s=None)
            elif notebook.gives_up_at_s is not None and notebook.gives_up_at_s <= at_s:
                self._give_up(notebook, at_s)
            elif notebook.ends_at_s is not None and notebook.ends_at_s <= at_s and notebook.stopping is None:
                assert notebook.timeout_s is not None
                reason = f"stopped after its time limit of {format_seconds(notebook.timeout_s)}"
                self._put(replace(notebook, stopping=Stopping(False, reason)))
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
        for job in [one.job for one in self._waiting_for_dependencies()]:
            notebook = self._all[job]
            if not notebook.over:
                self._update_dependencies(notebook, self._with_known_ends(notebook.waiting), event.at_s)

    def _lost_with_the_server(self, notebook: BatchNotebook, at_s: float) -> None:
        stopping = notebook.stopping
        if stopping is not None and stopping.cancelled:
            self._end(notebook, NotebookTransition.CANCEL, at_s, f"cancelled {stopping.message}")
        elif notebook.restart.policy is Restart.NEVER:
            reason = f"{SERVER_DIED}; it is not run again because its restart policy is never"
            self._end(notebook, NotebookTransition.FAIL, at_s, reason)
        elif notebook.attempts >= notebook.restart.attempts_max:
            reason = f"{SERVER_DIED}; it has been started {notebook.attempts} times, which is the most"
            self._end(notebook, NotebookTransition.FAIL, at_s, reason)
        else:
            self._move(notebook, NotebookTransition.REQUEUE, reason=SERVER_DIED, stopping=None)

    # -- dependencies --------------------------------------------------------------------------------------

    def _announce(self, event: CheckpointAnnounced) -> None:
        job, name = event.job, event.name
        problem = conditions.name_problem(name)
        if problem is not None:
            raise IllegalEvent(f"{name[:80]!r} is not a name for a checkpoint: {problem}", "client")
        notebook = self._all.get(job)
        known = self.checkpoints(job)
        if name in known:
            return
        if notebook is not None:
            if notebook.state is not NotebookState.RUNNING:
                raise IllegalEvent(f"notebook {job} does not run ({notebook.state})", "client")
            if len(known) >= CHECKPOINTS_MAX:
                raise IllegalEvent(
                    f"notebook {job} has announced {CHECKPOINTS_MAX} checkpoints, the most", "client"
                )
            self._put(replace(notebook, checkpoints=(*known, name)))
        elif job in self.awaited:
            self._announced[job] = (*known, name)
        for one in self._waiting_for_dependencies():
            self._update_dependencies(one, one.waiting.checkpoint(job, name), event.at_s)

    def _waiting_for_dependencies(self) -> list[BatchNotebook]:
        """Return the notebooks that wait for more than a slot."""
        return [one for one in self if one.state is NotebookState.QUEUED and one.waits_for]

    def _with_known_ends(self, waiting: DependencyState) -> DependencyState:
        """Apply what other notebooks have done by now."""
        for name in sorted(conditions.jobs_in(waiting.open)):
            other = self._all.get(name)
            for checkpoint in self.checkpoints(name):
                waiting = waiting.checkpoint(name, checkpoint)
            if other is not None and other.over:
                waiting = waiting.job_ended(name, _in_reasons(name), other.state, other.checkpoints)
        return waiting

    def _job_ended(self, job: str, state: str, announced: Sequence[str], at_s: float) -> None:
        """Let notebooks that depend on the job continue, or end with it, and their dependents, too."""
        ended = [(job, state, announced)]
        while ended:
            job, state, announced = ended.pop()
            for one in self._waiting_for_dependencies():
                if job not in conditions.jobs_in(one.waits_for):
                    continue
                waiting = one.waiting.job_ended(job, _in_reasons(job), state, announced)
                if self._update_dependencies(one, waiting, at_s, alone=True):
                    ended.append((one.job, NotebookState.CANCELLED, one.checkpoints))

    def _update_dependencies(
        self, notebook: BatchNotebook, waiting: DependencyState, at_s: float, alone: bool = False
    ) -> bool:
        """Return whether the notebook ended, since its dependencies cannot be met any more. ``alone``: the
        caller handles its dependents."""
        if waiting == notebook.waiting:
            return False
        changed = replace(notebook, waits_for=waiting.open, dependency_results=waiting.results)
        if waiting.unsatisfiable is None:
            self._put(changed)
            return False
        if alone:
            self._move(changed, NotebookTransition.CANCEL, reason=waiting.unsatisfiable, finished_at_s=at_s)
        else:
            self._end(changed, NotebookTransition.CANCEL, at_s, waiting.unsatisfiable)
        return True

    def _give_up(self, notebook: BatchNotebook, at_s: float) -> None:
        assert notebook.after_timeout_s is not None
        why = conditions.timeout_reason(notebook.waiting, notebook.after_timeout_s, str)
        self._end(notebook, NotebookTransition.CANCEL, at_s, why)

    # -- moves ---------------------------------------------------------------------------------------------

    def _fill_slots(self, at_s: float) -> None:
        free = self.slots - len(self.running)
        if free <= 0:
            return
        for notebook in self.queue()[:free]:
            attempt = notebook.attempts + 1
            self._move(
                notebook,
                NotebookTransition.START,
                attempts=attempt,
                started_at_s=at_s,
                finished_at_s=None,
                reason="",
                cell=0,
                cells=0,
            )
            self._commands.append(messages.StartNotebook(notebook.job, attempt))

    def _running(self, job: str, attempt: int) -> BatchNotebook:
        notebook = self._all.get(job)
        if notebook is None or notebook.state is not NotebookState.RUNNING or notebook.attempts != attempt:
            raise IllegalEvent(f"notebook {job} has no running attempt {attempt}", "pool")
        return notebook

    def _end(self, notebook: BatchNotebook, move: NotebookTransition, at_s: float, reason: str) -> None:
        self._move(notebook, move, reason=reason, finished_at_s=at_s, retry_at_s=None, stopping=None)
        self._job_ended(notebook.job, self._all[notebook.job].state, notebook.checkpoints, at_s)

    def _move(self, notebook: BatchNotebook, move: NotebookTransition, **changes: object) -> None:
        state = TRANSITIONS[(notebook.state, move)]
        self._put(replace(notebook, state=state, **changes))

    def _put(self, notebook: BatchNotebook) -> None:
        self._all[notebook.job] = notebook
        self._commands.append(messages.SaveNotebook(notebook))


def _in_reasons(job: str) -> str:
    return f"{job}, which it depends on,"
