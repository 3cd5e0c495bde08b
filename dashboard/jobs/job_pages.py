"""Answers of the pool to queries of jobs, for all visitors of a user: equal queries are asked once."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from djinn_lab.client.rest import PoolClient
from djinn_lab.protocol.rest.jobs import JobPage

AGAIN_S = 1.0
COST_SHARE = 0.05
"""Of the time, that asking the same again and again may take."""
KEPT_MAX = 100


class JobsWanted(NamedTuple):
    """A query of :meth:`~djinn_lab.client.rest.PoolClient.job_page`."""

    state: str | None = None
    user: str | None = None
    find: str = ""
    before: str | None = None


class Answered(NamedTuple):
    """``page`` is asked for again after ``until_s``, monotonic seconds."""

    page: JobPage
    until_s: float

    def is_old(self) -> bool:
        """Return whether to ask again."""
        return self.until_s <= time.monotonic()


class JobPages:
    """Keep the newest answers. Thread-safe."""

    def __init__(self) -> None:
        self._answers: dict[JobsWanted, Answered] = {}
        self._lock = threading.Lock()

    def known(self, wanted: JobsWanted) -> Answered | None:
        """Return the newest answer to a query."""
        return self._answers.get(wanted)

    def read(self, reader: PoolClient, wanted: JobsWanted) -> Answered:
        """Ask the pool, unless another visitor has just done so. Raises what ``job_page`` raises."""
        with self._lock:
            found = self._answers.get(wanted)
            if found is not None and not found.is_old():
                return found
            began_s = time.monotonic()
            page = reader.job_page(**wanted._asdict())
            ended_s = time.monotonic()
            answered = Answered(page, ended_s + max(AGAIN_S, (ended_s - began_s) / COST_SHARE))
            self._answers.pop(wanted, None)
            self._answers[wanted] = answered
            while len(self._answers) > KEPT_MAX:
                del self._answers[next(iter(self._answers))]
            return answered
