"""Batch notebooks as cells that come after them see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_lab.jobs import Elsewhere, IllegalEvent
from djinn_lab.jobs.batch import Notebook, Notebooks
from djinn_lab.jobs.conditions import jobs_in
from djinn_lab.pool.registry import SessionRegistry

if TYPE_CHECKING:
    from djinn_lab.jobs.queue import JobQueue


class AwaitedNotebooks:
    """``sessions``: those of kernels of batch notebooks say so."""

    def __init__(self, core: Notebooks, queue: JobQueue, sessions: SessionRegistry) -> None:
        self._core = core
        self._queue = queue
        self._sessions = sessions

    def named(self, start: str) -> Elsewhere:
        """The one whose id begins so. Raises IllegalEvent where none or several do."""
        exact = self._core.get(start)
        found = [exact] if exact is not None else [one for one in self._core if one.job.startswith(start)]
        if len(found) != 1:
            many = f"{len(found)} batch notebooks begin with {start!r}; give more of it"
            raise IllegalEvent(many if found else f"there is no batch notebook {start!r}", "client")
        return as_awaited(found[0], self._cells_before(found[0].job))

    def _cells_before(self, job: str) -> tuple[str, ...]:
        """All cells that have to end before it can: those that it waits for, or its own while it runs, and
        the same of the notebooks that it waits for."""
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


def as_awaited(notebook: Notebook, waits_for: tuple[str, ...] = ()) -> Elsewhere:
    return Elsewhere(
        notebook.job, notebook.name, notebook.state, notebook.over, notebook.checkpoints, waits_for
    )
