"""One poller for all browser sessions of a process.

A thread asks the pool a few times a second while a page is open, and publishes immutable, numbered
snapshots. Browser sessions compare the number they drew last with the current one; they never talk to
the pool for the live view. The hub finds the pool again by itself when it went away.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import msgspec

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.memory.history import MemoryHistory
from djinn_lab.dashboard.queueing.history import QueueHistory
from djinn_lab.errors import AuthenticationError, DjinnError, PoolNotFound, PoolSilent
from djinn_lab.protocol.rest.costs import CostView
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.notebooks import NotebookView
from djinn_lab.protocol.rest.queue import QueueView
from djinn_lab.protocol.rest.sessions import MemoryView, SessionView
from djinn_lab.protocol.rest.status import PoolStatus

Kept = TypeVar("Kept")
Connection = Literal["connecting", "live", "absent", "lost", "refused"]
POLL_S = 0.5
IDLE_POLL_S = 5.0
QUEUE_POLL_S = 0.9
COSTS_POLL_S = 2.0
WATCHED_S = 10.0
"""A hub that was not read for so long polls at the idle pace."""
JOBS_MAX = 200
NOTEBOOKS_MAX = 1000
"""Those that run may be the oldest of all that wait or run, and must not be left out."""
HISTORY_MAX = 1800
"""Memory samples kept: a quarter of an hour at :data:`POLL_S`."""


class Snapshot(msgspec.Struct, frozen=True):
    """What the hub knows of the pool. ``message`` and ``advice`` explain every connection but ``live``.
    ``polled_at``: monotonic seconds of the last successful poll. ``status`` and the rest keep their last
    known values while the pool is away."""

    version: int = 0
    connection: Connection = "connecting"
    message: str = "Looking for a pool"
    advice: str = ""
    status: PoolStatus | None = None
    sessions: tuple[SessionView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    memory: MemoryView | None = None
    queue: QueueView | None = None
    notebooks: tuple[NotebookView, ...] = ()
    costs: CostView | None = None
    polled_at: float | None = None

    def job(self, job: str) -> JobView | None:
        return next((found for found in self.jobs if found.job == job), None)

    def notebooks_by_session(self) -> dict[str, str]:
        """Return the names of the notebooks whose sessions are open."""
        return {one.session: one.name for one in self.sessions if one.name}

    @property
    def user(self) -> str:
        """Return who asks, empty before the pool has said so."""
        return "" if self.status is None else self.status.user


class MemorySample(msgspec.Struct, frozen=True):
    """Used bytes of each device at ``at``, seconds since the epoch by the pool's clock."""

    version: int
    pool: str
    at: float
    used_bytes: dict[str, int]


class Hub:
    """Polls the pool for all browser sessions. ``find`` connects to the pool; it raises :class:`PoolNotFound`
    when none runs."""

    def __init__(self, find: Callable[[], PoolClient]) -> None:
        self._find = find
        self._reader: PoolClient | None = None
        self._snapshot = Snapshot()
        self._history: deque[MemorySample] = deque(maxlen=HISTORY_MAX)
        self.session_memory = MemoryHistory()
        self.queue_history = QueueHistory()
        self._queue_wanted_at = 0.0
        self._notebooks_wanted_at = 0.0
        self._queue_read_at = 0.0
        self._costs_wanted_at = 0.0
        self._costs_read_at = 0.0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._first = threading.Event()
        self._stopped = threading.Event()
        self._read_at = time.monotonic()
        self.executor = ThreadPoolExecutor(2, thread_name_prefix="dashboard")
        self._kept: dict[str, Any] = {}

    def start(self) -> Hub:
        """Begin to poll, on a daemon thread."""
        threading.Thread(target=self._run, name="dashboard-hub", daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop polling."""
        self._stopped.set()
        self._wake.set()
        self.executor.shutdown(wait=False, cancel_futures=True)

    def wait_for_first(self, timeout_s: float) -> None:
        """Return when the first poll is over, at the latest after ``timeout_s``."""
        self._first.wait(timeout_s)

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot; a call keeps the hub polling at its live rate."""
        was_idle = time.monotonic() - self._read_at > WATCHED_S
        self._read_at = time.monotonic()
        if was_idle:
            self._wake.set()
        return self._snapshot

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """Return what pages of this hub's user share under a name, made on first use."""
        with self._lock:
            if name not in self._kept:
                self._kept[name] = make()
            found: Kept = self._kept[name]
            return found

    def want_queue(self) -> None:
        """Ask for the queue's explanations for a while, since a page shows them: they cost the pool
        something."""
        self._queue_wanted_at = time.monotonic()

    def want_notebooks(self) -> None:
        """Ask for the batch notebooks for a while, since a page shows them."""
        self._notebooks_wanted_at = time.monotonic()

    def _read_notebooks(
        self, reader: PoolClient, before: tuple[NotebookView, ...]
    ) -> tuple[NotebookView, ...]:
        if time.monotonic() - self._notebooks_wanted_at > WATCHED_S:
            return before
        return tuple(reader.notebooks(limit=NOTEBOOKS_MAX))

    def _read_queue(self, reader: PoolClient, before: QueueView | None) -> QueueView | None:
        now = time.monotonic()
        if now - self._queue_wanted_at > WATCHED_S or now - self._queue_read_at < QUEUE_POLL_S:
            return before
        self._queue_read_at = now
        return reader.queue()

    def want_costs(self) -> None:
        """Ask for the cost model for a while, since a page shows it."""
        self._costs_wanted_at = time.monotonic()

    def _read_costs(self, reader: PoolClient, before: CostView | None) -> CostView | None:
        now = time.monotonic()
        if now - self._costs_wanted_at > WATCHED_S or now - self._costs_read_at < COSTS_POLL_S:
            return before
        self._costs_read_at = now
        return reader.costs(details=True)

    def memory_after(self, version: int) -> list[MemorySample]:
        """Return memory samples of the running pool that are newer than ``version``, oldest first."""
        with self._lock:
            return [sample for sample in self._history if sample.version > version]

    def recall_memory(self, pool: str, at: float, used_bytes: dict[str, int]) -> None:
        """Take a memory sample of a time before the first poll, after those before it."""
        with self._lock:
            self._history.append(MemorySample(0, pool, at, used_bytes))

    def reader(self) -> PoolClient:
        """Return the client with which a user's own requests reach the pool. Raises :class:`PoolNotFound`."""
        return self._reader or self._find()

    def poll(self) -> Snapshot:
        """Ask the pool once and publish what it says."""
        before = self._snapshot
        try:
            reader = self._reader or self._find()
            found = reader.snapshot(jobs=JOBS_MAX)
            queue = self._read_queue(reader, before.queue)
            notebooks = self._read_notebooks(reader, before.notebooks)
            costs = self._read_costs(reader, before.costs)
        except DjinnError as error:
            self._reader = None
            self._snapshot = _without_pool(before, error)
            return self._snapshot
        self._reader = reader
        version = before.version + 1
        status = found.status
        self._remember(version, status)
        self.session_memory.note(status.pool, found.memory)
        if queue is not None:
            self.queue_history.note(status.pool, queue)
        self._snapshot = Snapshot(
            version=version,
            connection="live",
            message="",
            status=status,
            sessions=found.sessions,
            jobs=found.jobs,
            memory=found.memory,
            queue=queue,
            notebooks=notebooks,
            costs=costs,
            polled_at=time.monotonic(),
        )
        return self._snapshot

    def _remember(self, version: int, status: PoolStatus) -> None:
        used = {device.device: device.used_bytes for device in status.devices}
        with self._lock:
            if self._history and self._history[-1].pool != status.pool:
                self._history.clear()
            self._history.append(MemorySample(version, status.pool, status.now, used))

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            self.poll()
            self._first.set()
            watched = time.monotonic() - self._read_at < WATCHED_S
            pause = (POLL_S if watched else IDLE_POLL_S) - (time.monotonic() - began)
            self._wake.wait(max(0.05, pause))
            self._wake.clear()


def _without_pool(before: Snapshot, error: DjinnError) -> Snapshot:
    connection: Connection = "lost"
    if isinstance(error, PoolNotFound) and not isinstance(error, PoolSilent):
        connection = "absent"
    elif isinstance(error, AuthenticationError):
        connection = "refused"
    same = (before.connection, before.message, before.advice) == (connection, error.message, error.advice)
    version = before.version if same else before.version + 1
    return msgspec.structs.replace(
        before, version=version, connection=connection, message=error.message, advice=error.advice
    )
