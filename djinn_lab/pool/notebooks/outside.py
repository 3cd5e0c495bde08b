"""What batch notebooks come after that is none of them: cells, and data that was published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from djinn_lab.jobs import FINISHED
from djinn_lab.jobs.batch import CellEnded
from djinn_lab.jobs.conditions import jobs_in, parse
from djinn_lab.pool.bookkeeping import Bookkeeper
from djinn_lab.pool.database import history
from djinn_lab.pool.database.store import Store


class Outside:
    """As the pool knows it now."""

    def __init__(self, books: Bookkeeper, store: Store) -> None:
        self._books = books
        self._store = store

    def met(self, account: str, after: Iterable[str]) -> tuple[str, ...]:
        """Of these conditions, those that published data and cells that are remembered have met."""
        texts = tuple(after)
        announced = self.announced(texts)
        by_cells = (text for text in texts if any(parse(text).met_by_checkpoint(*one) for one in announced))
        return (*self._books.published.met(account, texts), *by_cells)

    def announced(self, after: Sequence[str]) -> list[tuple[str, str]]:
        """Checkpoints of the cells among these that are remembered: whose, and what they are called."""
        records = [self._books.records.get(cell) for cell in sorted(jobs_in(tuple(after)))]
        return [(one.job, name) for one in records if one is not None for name in one.checkpoints]

    async def ended(self, job: str, at_s: float) -> CellEnded | None:
        """How a cell's job ended, None while it goes on. Raises SQLAlchemyError."""
        record = self._books.records.get(job)
        if record is not None:
            state, checkpoints = record.state, record.checkpoints
        else:
            rows = await self._store.read(lambda connection: history.read_job(connection, job))
            if len(rows) != 1:
                return CellEnded(at_s, job, False, "not known any more")
            state, checkpoints = rows[0][0].state, rows[0][0].checkpoints
        return CellEnded(at_s, job, state == "DONE", state, checkpoints) if state in FINISHED else None
