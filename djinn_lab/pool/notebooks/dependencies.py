"""Dependencies between batch notebooks and cells: notebooks as prerequisites of cells, and cells and
published data as prerequisites of notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from djinn_lab.jobs import FINISHED, ExternalDependency, IllegalEvent
from djinn_lab.jobs.batch import BatchNotebook, CellJobEnded, Notebooks
from djinn_lab.jobs.conditions import jobs_in, parse
from djinn_lab.pool.bookkeeping.job_accounting import JobAccounting
from djinn_lab.pool.database import history
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.sessions.registry import SessionRegistry

if TYPE_CHECKING:
    from djinn_lab.jobs.machine.queue import JobQueue


class NotebookPrerequisites:
    """``sessions``: those of kernels of batch notebooks say so."""

    def __init__(self, core: Notebooks, queue: JobQueue, sessions: SessionRegistry) -> None:
        self._core = core
        self._queue = queue
        self._sessions = sessions

    def named(self, start: str) -> ExternalDependency:
        """Find the notebook whose id begins so. Raises IllegalEvent where none or several do."""
        exact = self._core.get(start)
        found = [exact] if exact is not None else [one for one in self._core if one.job.startswith(start)]
        if len(found) != 1:
            many = f"{len(found)} batch notebooks begin with {start!r}; give a longer one"
            raise IllegalEvent(many if found else f"there is no batch notebook {start!r}", "client")
        return as_prerequisite(found[0], self._cells_before(found[0].job))

    def _cells_before(self, job: str) -> tuple[str, ...]:
        """List all cells that have to end before a notebook can: its dependencies, or its own cells while it
        runs, and the same of the notebooks that it depends on."""
        seen: dict[str, None] = {}
        frontier = [job]
        while frontier:
            name = frontier.pop()
            if name in seen:
                continue
            seen[name] = None
            notebook = self._core.get(name)
            if notebook is not None and not notebook.over:
                frontier += sorted(jobs_in(notebook.waits_for))
                own = [one.session for one in self._sessions if one.notebook == name]
                frontier += [cell for session in own for cell in self._queue.jobs_of(session)]
        return tuple(name for name in seen if self._core.get(name) is None)


def as_prerequisite(notebook: BatchNotebook, waits_for: tuple[str, ...] = ()) -> ExternalDependency:
    return ExternalDependency(
        notebook.job, notebook.name, notebook.state, notebook.over, notebook.checkpoints, waits_for
    )


class NotebookDependencies:
    """Look up the cells and published data that batch notebooks depend on."""

    def __init__(self, accounting: JobAccounting, store: Store) -> None:
        self._accounting = accounting
        self._store = store

    def met(self, account: str, after: Iterable[str]) -> tuple[str, ...]:
        """List the conditions that published data and remembered cells have met."""
        texts = tuple(after)
        announced = self.announced(texts)
        by_cells = (text for text in texts if any(parse(text).met_by_checkpoint(*one) for one in announced))
        return (*self._accounting.published.met(account, texts), *by_cells)

    def announced(self, after: Sequence[str]) -> list[tuple[str, str]]:
        """List the checkpoints of remembered cells among these: the cell and the name of each."""
        records = [self._accounting.records.get(cell) for cell in sorted(jobs_in(tuple(after)))]
        return [(one.job, name) for one in records if one is not None for name in one.checkpoints]

    async def ended(self, job: str, at_s: float) -> CellJobEnded | None:
        """Find how a cell's job ended, None while it is unfinished. Raises SQLAlchemyError."""
        record = self._accounting.records.get(job)
        if record is not None:
            state, checkpoints = record.state, record.checkpoints
        else:
            rows = await self._store.read(lambda connection: history.read_job(connection, job))
            if len(rows) != 1:
                return CellJobEnded(at_s, job, False, "not known any more")
            state, checkpoints = rows[0][0].state, rows[0][0].checkpoints
        return CellJobEnded(at_s, job, state == "DONE", state, checkpoints) if state in FINISHED else None
