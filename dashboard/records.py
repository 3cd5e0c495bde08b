"""The pool's answers as frozen records. Unknown keys are ignored, so a newer pool can still be watched."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_lab.jobs.resources import Foretold

FINISHED_STATES = frozenset({"DONE", "FAILED", "CANCELLED"})


class Device(msgspec.Struct, frozen=True):
    device: str
    kind: str = ""
    name: str = ""
    state: str = "starting"
    memory_bytes: int = 0
    used_bytes: int = 0
    threads: int = 0
    torch_version: str = ""
    flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    op_overhead_s: float | None = None
    job: str | None = None
    queue_length: int = 0
    pid: int | None = None
    restarts: int = 0
    session_bytes: dict[str, int] = {}
    failure: str | None = None


class Blobs(msgspec.Struct, frozen=True):
    count: int = 0
    bytes: int = 0


class Status(msgspec.Struct, frozen=True):
    """``now`` is the pool's clock, in seconds since the epoch."""

    pool: str
    version: str = ""
    started_at: float = 0.0
    uptime_s: float = 0.0
    now: float = 0.0
    user: str = ""
    role: str = ""
    ready: bool = False
    devices: tuple[Device, ...] = ()
    sessions: int = 0
    jobs: dict[str, int] = {}
    blobs: Blobs = Blobs()
    event_loop_lag_s: float | None = None


class Session(msgspec.Struct, frozen=True):
    session: str
    user: str = ""
    name: str = ""
    device: str | None = None
    state: str = ""
    phase: str | None = None
    used_bytes: int = 0
    jobs: int = 0
    connected_at: float | None = None
    last_seen: float | None = None


class JobError(msgspec.Struct, frozen=True):
    family: str = ""
    type_name: str = ""
    message: str = ""
    advice: str = ""


class Cut(msgspec.Struct, frozen=True):
    segment: int = 0
    cause: str = ""
    line: int = 0


class Job(msgspec.Struct, frozen=True):
    job: str
    session: str = ""
    user: str = ""
    cell: str = ""
    priority: str = ""
    state: str = ""
    reason: str = ""
    device: str | None = None
    position: int | None = None
    estimate_s: float | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    segments: int = 0
    ops_done: int = 0
    ops_total: int = 0
    stages: dict[str, float] = {}
    cuts: tuple[Cut, ...] = ()
    error: JobError | None = None
    peak_bytes: int = 0
    predicted_s: float | None = None
    measured_s: float | None = None
    foretold: Foretold | None = None
    watts: float | None = None
    used_j: float | None = None

    @property
    def finished(self) -> bool:
        return self.state in FINISHED_STATES

    @property
    def short_id(self) -> str:
        return self.job[:8]


def read_status(answer: object) -> Status:
    """Raises ``msgspec.ValidationError`` when the answer is not a status."""
    return msgspec.convert(_plain(answer), Status, strict=False)


def read_sessions(answer: object) -> tuple[Session, ...]:
    """Raises ``msgspec.ValidationError`` when the answer is not a list of sessions."""
    return msgspec.convert(_plain(answer), tuple[Session, ...], strict=False)


class BatchNotebook(msgspec.Struct, frozen=True):
    """A notebook that runs as a batch job; see :class:`djinn_lab.pool.notebooks.views.NotebookView`."""

    job: str
    user: str = ""
    name: str = ""
    priority: str = ""
    state: str = ""
    reason: str = ""
    cell: int = 0
    cells: int = 0
    attempts: int = 0
    attempts_max: int | None = None
    submitted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None

    @property
    def over(self) -> bool:
        return self.state in FINISHED_STATES


def read_notebooks(answer: object) -> tuple[BatchNotebook, ...]:
    """Raises ``msgspec.ValidationError`` when the answer is not a list of batch notebooks."""
    return msgspec.convert(_plain(answer), tuple[BatchNotebook, ...], strict=False)


def read_jobs(answer: object) -> tuple[Job, ...]:
    """Raises ``msgspec.ValidationError`` when the answer is not a list of jobs."""
    return msgspec.convert(_plain(answer), tuple[Job, ...], strict=False)


def _plain(answer: object) -> Any:
    return msgspec.to_builtins(answer)
