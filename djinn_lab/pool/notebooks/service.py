"""Runs batch notebooks: gives the core its events, commits what it decides, starts and stops runners.

Everything that the core decides is committed before it is done, in order (:mod:`.decisions`): no runner
starts before the database says that it runs, and no client receives the acceptance of a notebook before it is
stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import sqlalchemy as sa

from djinn_lab.jobs import IllegalEvent
from djinn_lab.jobs.batch import (
    AttemptOutcome,
    BatchNotebook,
    CancelAsked,
    CheckpointAnnounced,
    Command,
    DataPublished,
    Event,
    ForgetNotebook,
    NotebookAccepted,
    NotebookEnded,
    NotebookProgressed,
    Notebooks,
    NotebookState,
    SaveNotebook,
    ServerStarted,
    StartNotebook,
    StopNotebook,
    Submission,
    TimePassed,
)
from djinn_lab.jobs.conditions import parse
from djinn_lab.pool.authentication import Authentication, User
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.execution.clock import Timer
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.notebooks import store as notebook_store
from djinn_lab.pool.notebooks.attempt_files import (
    read_executed_file,
    read_outcome_file,
    read_session_file,
    remove,
    wait_for_exit,
)
from djinn_lab.pool.notebooks.command_commits import CommandCommitter, until_stored
from djinn_lab.pool.notebooks.dependencies import NotebookDependencies, NotebookPrerequisites, as_prerequisite
from djinn_lab.pool.notebooks.messages import AttemptEnded, CellBegins, FromRunner, Task
from djinn_lab.pool.notebooks.runs import NotebookRun, kernel_environment
from djinn_lab.pool.notebooks.store import AcceptedSubmission

WATCH_EVERY_S = 0.25

log = logging.getLogger(__name__)


class NotebookRules(msgspec.Struct, frozen=True):
    """``slots``: runners at once. ``open_to``: users that may submit, one of
    :data:`djinn_lab.protocol.notebooks.OPEN_TO`. ``umask``: of the files that notebooks write."""

    slots: int = 2
    open_to: str = "owner"
    umask: int = 0o022


NOTEBOOK_RULES = NotebookRules()


class NotebookService:
    """Serve one pool's batch notebooks. Everything here runs on the event loop's thread."""

    def __init__(
        self, driver: Driver, authentication: Authentication, store: Store, rules: NotebookRules
    ) -> None:
        self.core = Notebooks(rules.slots)
        self.rules = rules
        self.started = asyncio.Event()
        self.dependencies = NotebookDependencies(driver.accounting, store)
        driver.submissions.notebooks = NotebookPrerequisites(self.core, driver.core.queue, driver.registry)
        self._driver = driver
        self._authentication = authentication
        self._store = store
        self._url = self._certificate = ""
        self._directory = Path()
        self._accepted: dict[str, AcceptedSubmission] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._accepting: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._runs: dict[str, NotebookRun] = {}
        self._executed: dict[str, bytes] = {}
        self._committer = CommandCommitter(self._now_s, self._commit, self._carry_out, self._attempt_ended)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer = Timer(self._now_s, self._due)
        self._changed = asyncio.Event()

    # -- its life ------------------------------------------------------------------------------------------

    async def start(self, url: str, directory: Path, certificate: str = "") -> None:
        """Load the notebooks that an earlier server left. ``url``: of this pool, ``directory``: for runners'
        files. ``certificate``: of this pool, as PEM, where it has one."""
        self._url, self._directory, self._certificate = url, directory, certificate
        self._spawn(self._resume_stored())

    async def stop(self) -> None:
        """End the runners; the next server runs their notebooks again, as after a crash."""
        runs = list(self._runs.values())
        self._runs.clear()
        for task in self._tasks:
            if task.get_name() != "run":
                task.cancel()
        for run in runs:
            run.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _resume_stored(self) -> None:
        try:
            rows = await until_stored(lambda: self._store.read(notebook_store.read_all))
            await self._begin(rows)
        except sa.exc.SQLAlchemyError:
            log.exception("batch notebooks are not served: the database cannot be used")
            return
        self.started.set()
        self._spawn(self._committer.perform())
        self._spawn(self._watch_cells())

    async def _begin(self, rows: Sequence[tuple[AcceptedSubmission, BatchNotebook]]) -> None:
        notebooks = [notebook for _, notebook in rows]
        ended = []
        for notebook in notebooks:
            if notebook.state is NotebookState.RUNNING:
                left = await self._outcome_of_dead_server(notebook)
                ended += [] if left is None else [left]
        for accepted, _ in rows:
            self._know(accepted)
        commands = self.core.handle(ServerStarted(self._now_s(), tuple(notebooks), tuple(ended)))
        await until_stored(lambda: self._commit(commands))
        await asyncio.to_thread(remove, self._directory)  # the database has what was in it
        self._committer.put([one for one in commands if isinstance(one, StartNotebook)])
        for one in list(self.core):
            account = one.account or one.user
            for text in self._driver.accounting.published.met(account, one.waits_for):
                self._handle(DataPublished(self._now_s(), account, parse(text).name))
        self._timer.set(self.core.wake_at_s())

    async def _outcome_of_dead_server(self, notebook: BatchNotebook) -> NotebookEnded | None:
        """Find how an attempt that ran under a dead server ended, if its runner got to its end."""
        directory = self._place(notebook.job, notebook.attempts)
        await wait_for_exit(directory)
        executed = await asyncio.to_thread(read_executed_file, directory)
        if executed is not None:
            self._executed[notebook.job] = executed
        left = await asyncio.to_thread(read_outcome_file, directory, notebook.attempts)
        if left is None or left.outcome not in (AttemptOutcome.DONE, AttemptOutcome.FAILED):
            return None
        return self._event(notebook.job, left)

    # -- from the API --------------------------------------------------------------------------------------

    def job_with_key(self, user: str, key: str) -> AcceptedSubmission | None:
        """Find what the user submitted before with this key."""
        job = self._by_key.get((user, key))
        return None if job is None else self._accepted[job]

    async def submit(
        self, asked: Submission, accepted: AcceptedSubmission, source: bytes
    ) -> AcceptedSubmission:
        """Store a submission. Returns it, or an earlier one with the same key. Raises IllegalEvent or
        SQLAlchemyError, with nothing accepted."""
        key = (accepted.user, accepted.key)
        async with self._accepting.setdefault(key, asyncio.Lock()):
            known = self.job_with_key(*key)
            if known is None:
                await self._accept(asked, accepted, source)
        return known or accepted

    async def _accept(self, asked: Submission, accepted: AcceptedSubmission, source: bytes) -> None:
        notebook = self.core.admit(asked)
        pool = self._driver.core.pool
        await self._store.commit(
            lambda connection: notebook_store.insert(connection, pool, accepted, notebook, source)
        )
        self._know(accepted)
        met = self.dependencies.met(notebook.account, notebook.waits_for)
        self._handle(NotebookAccepted(self._now_s(), notebook, met))
        for cell, name in self.dependencies.announced(notebook.waits_for):
            self._handle(CheckpointAnnounced(self._now_s(), cell, name))

    def cancel(self, job: str, message: str) -> None:
        """Cancel a notebook. Raises IllegalEvent when it is over. ``message``: the requester, for its
        reason."""
        self._handle(CancelAsked(self._now_s(), job, message))

    async def announce(self, event: CheckpointAnnounced) -> None:
        """Record a running notebook's checkpoint. Raises IllegalEvent, or SQLAlchemyError when it is not
        stored."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handle(event, stored)
        await stored

    def handle(self, event: CheckpointAnnounced | DataPublished) -> None:
        """Take a checkpoint or published data that is stored already, for notebooks that depend on it."""
        if self.started.is_set():
            self._handle(event)

    def cancel_all_of(self, user: str, message: str) -> None:
        """Cancel all unfinished notebooks of a user."""
        for job in [one.job for one in self.core if one.user == user]:
            with contextlib.suppress(IllegalEvent):  # it is over, perhaps together with one before it
                self.cancel(job, message)

    async def until_over(self, job: str, timeout_s: float) -> None:
        """Wait until a notebook is over, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while (notebook := self.core.get(job)) is not None and not notebook.over:
                    self._changed.clear()
                    await self._changed.wait()

    async def executed(self, job: str) -> bytes | None:
        """Return the executed notebook as far as it is, or as the latest attempt left it."""
        notebook = self.core.get(job)
        if notebook is not None and notebook.state is NotebookState.RUNNING:
            directory = self._place(job, notebook.attempts)
            partial = await asyncio.to_thread(read_executed_file, directory)
            if partial is not None:
                return partial
        if job in self._executed:
            return self._executed[job]
        return await self._store.read(lambda connection: notebook_store.read_executed(connection, job))

    # -- the core ------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return self._driver.core.clock.now_s()

    def _handle(self, event: Event, stored: asyncio.Future[None] | None = None) -> None:
        self._committer.put(self.core.handle(event), stored)
        self._timer.set(self.core.wake_at_s())
        self._changed.set()

    def _due(self) -> None:
        self._handle(TimePassed(self._now_s()))

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, SaveNotebook):
            self._driver.notebook_changed(as_prerequisite(command.notebook))
        elif isinstance(command, StartNotebook):
            self._start_run(command)
        elif isinstance(command, StopNotebook):
            self._stop_run(command)

    async def _commit(self, commands: Sequence[Command]) -> None:
        latest = {one.notebook.job: one.notebook for one in commands if isinstance(one, SaveNotebook)}
        forgotten = [one.job for one in commands if isinstance(one, ForgetNotebook)]
        if not latest and not forgotten:
            return
        pool = self._driver.core.pool
        executed = {job: self._executed.get(job) for job in latest}

        def write(connection: sa.Connection) -> None:
            for job, notebook in latest.items():
                notebook_store.update(connection, pool, notebook, executed[job])
            notebook_store.forget(connection, forgotten)

        await self._store.commit(write)
        for job, notebook in latest.items():
            if notebook.attempts and notebook.state is not NotebookState.RUNNING:
                await asyncio.to_thread(remove, self._place(job, notebook.attempts))
            if executed[job] is not None and self._executed.get(job) is executed[job]:
                del self._executed[job]
        for job in forgotten:
            accepted = self._accepted.pop(job)
            self._by_key.pop((accepted.user, accepted.key), None)

    def _know(self, accepted: AcceptedSubmission) -> None:
        self._accepted[accepted.job] = accepted
        self._by_key[(accepted.user, accepted.key)] = accepted.job

    # -- runners -------------------------------------------------------------------------------------------

    def _start_run(self, command: StartNotebook) -> None:
        job, attempt = command.job, command.attempt

        def on_message(message: FromRunner) -> None:
            if isinstance(message, CellBegins) and self._runs.get(job) is run:
                event = NotebookProgressed(self._now_s(), job, attempt, message.cell, message.cells)
                self._handle(event)

        directory = self._place(job, attempt)
        folder = self._accepted[job].folder or str(directory)
        run = NotebookRun(directory, Task(job, attempt, folder, self.rules.umask), on_message)
        self._runs[job] = run
        self._spawn(self._run(run, job, attempt, directory), "run")

    def _stop_run(self, command: StopNotebook) -> None:
        if command.job in self._runs:
            self._runs[command.job].stop()

    async def _run(self, run: NotebookRun, job: str, attempt: int, directory: Path) -> None:
        """Run one attempt, from its token to its end."""
        notebook = self.core.get(job)
        assert notebook is not None
        user = self._authentication.named(notebook.user)
        source = await self._source(job)
        if user is None or source is None:
            gone = f"the user {notebook.user} is gone" if user is None else "its source cannot be read"
            ended = AttemptEnded(attempt, AttemptOutcome.LOST, gone)
        else:
            token = self._authentication.mint(user, job)
            try:
                environment = kernel_environment(notebook, self._url, token, directory, self._certificate)
                ended = await run.run(source, environment)
            finally:
                self._authentication.end_minted(token)
                self._close_session(user, directory)
        if self._runs.get(job) is not run:
            return  # the server stops: the next one continues from what is in the directory
        executed = await asyncio.to_thread(read_executed_file, directory)
        if executed is not None:
            self._executed[job] = executed
        del self._runs[job]
        self._attempt_ended(job, ended)

    def _attempt_ended(self, job: str, ended: AttemptEnded) -> None:
        self._handle(self._event(job, ended))

    async def _source(self, job: str) -> bytes | None:
        try:
            return await self._store.read(lambda connection: notebook_store.read_source(connection, job))
        except sa.exc.SQLAlchemyError:
            log.exception("the source of notebook %s cannot be read", job)
            return None

    def _close_session(self, user: User, directory: Path) -> None:
        """Close the session that a killed kernel left open."""
        left = read_session_file(directory)
        session = None if left is None else self._driver.registry.get(left)
        if session is not None and session.user == user.name:
            self._driver.close(session)

    def _event(self, job: str, ended: AttemptEnded) -> NotebookEnded:
        """Make the event of an attempt's end, with what it used on devices as far as this server saw it."""
        use = self._driver.accounting.notebook_uses.pop(job, None)
        ending = (ended.message, ended.cell, ended.cells)
        return NotebookEnded(self._now_s(), job, ended.attempt, ended.outcome, *ending, use)

    def _place(self, job: str, attempt: int) -> Path:
        return self._directory / f"{job}-{attempt}"

    # -- cells that notebooks wait for ---------------------------------------------------------------------

    async def _watch_cells(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            for job in self.core.awaited:
                try:
                    ended = await self.dependencies.ended(job, self._now_s())
                except sa.exc.SQLAlchemyError:
                    log.exception("the state of cell %s cannot be read", job)
                    break
                if ended is not None:
                    self._handle(ended)

    def _spawn(self, work: Coroutine[object, object, None], name: str = "notebooks") -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("batch notebooks are not served rightly any more", exc_info=task.exception())
