"""What JupyterLab's sidebar shows of the pool: one immutable view, in words, for one user.

The sidebar only draws it, so all that it says is decided, and tested, here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djinn_lab.errors import AuthenticationError, DjinnError, PoolNotFound
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.sessions import MemorySession
from djinn_lab.protocol.rest.status import DeviceView, PoolStatus
from djinn_lab.units import format_bytes, format_seconds

STATES = {"PREEMPTED": "was preempted", "RESTORING": "waits for its values", "RUNNING": "runs"}
SESSION_STATES = {
    "busy": "on {device}",
    "idle": "idle on {device}",
    "loading": "coming back to {device}",
    "host": "parked in host memory",
    "disk": "parked on disk",
    "none": "holds nothing yet",
}


class LabDevice(msgspec.Struct, frozen=True):
    """A row: ``used``: the part of its memory that is in use, 0 to 1."""

    device: str
    state: str
    detail: str
    used: float


class LabSession(msgspec.Struct, frozen=True):
    session: str
    label: str
    detail: str


class LabJob(msgspec.Struct, frozen=True):
    """``done``: the part of its ops that ran, None where that is not known yet."""

    job: str
    cell: str
    state: str
    detail: str
    done: float | None = None


class LabView(msgspec.Struct, frozen=True):
    """``line``: for the status bar. ``message`` and ``advice`` explain every connection but ``live``.
    ``dashboard``: its path below Jupyter's address, empty where Jupyter cannot open it."""

    connection: str
    line: str
    message: str = ""
    advice: str = ""
    user: str = ""
    devices: tuple[LabDevice, ...] = ()
    sessions: tuple[LabSession, ...] = ()
    jobs: tuple[LabJob, ...] = ()
    waiting_of_others: int = 0
    dashboard: str = ""


def view_of(
    status: PoolStatus,
    sessions: Sequence[MemorySession],
    jobs: Sequence[JobView],
    dashboard: str = "",
) -> LabView:
    """Compose the view of the user who asks. ``jobs``: those that are not over, newest first."""
    names = {one.session: one.name for one in sessions}
    running = {job.device: job for job in jobs if job.state == "RUNNING" and job.device is not None}
    own = [job for job in reversed(jobs) if job.user == status.user]
    others = [job for job in jobs if job.user != status.user and job.state != "RUNNING"]
    return LabView(
        connection="live",
        line=_line(status, own),
        user=status.user,
        devices=tuple(_device(device, running.get(device.device), names) for device in status.devices),
        sessions=tuple(_session(one) for one in sessions if one.user == status.user),
        jobs=tuple(_job(job, names) for job in own),
        waiting_of_others=len(others),
        dashboard=dashboard,
    )


def without_pool(error: DjinnError) -> LabView:
    """Say why there is no pool to show, and what to do."""
    if isinstance(error, PoolNotFound):
        return LabView("absent", "Djinn: no pool", error.message, error.advice)
    if isinstance(error, AuthenticationError):
        return LabView("refused", "Djinn: access refused", error.message, error.advice)
    return LabView("lost", "Djinn: pool lost", error.message, error.advice)


def _line(status: PoolStatus, own: Sequence[JobView]) -> str:
    running = sum(job.state == "RUNNING" for job in own)
    waiting = len(own) - running
    if running or waiting:
        parts = [f"{running} running" if running else "", f"{waiting} waiting" if waiting else ""]
        return f"Djinn: {', '.join(filter(None, parts))}"
    up = [device for device in status.devices if device.state in ("idle", "busy") and not device.cordoned]
    idle = sum(device.state == "idle" for device in up)
    return f"Djinn: {idle} of {len(status.devices)} devices idle"


def _device(device: DeviceView, job: JobView | None, names: dict[str, str]) -> LabDevice:
    held = f"{format_bytes(device.used_bytes)} of {format_bytes(device.memory_bytes)}"
    state = "cordoned" if device.cordoned and device.state == "idle" else device.state
    words = [_of_notebook(job, names)] if job is not None else []
    words += [f"{device.queue_length} waiting"] if device.queue_length else []
    words += [device.failure] if device.failure else [held]
    used = device.used_bytes / device.memory_bytes if device.memory_bytes else 0.0
    return LabDevice(device.device, state, ", ".join(words), min(1.0, used))


def _session(one: MemorySession) -> LabSession:
    where = SESSION_STATES[one.state].format(device=one.device)
    held = one.total_bytes
    return LabSession(one.session, one.label, f"{where}, {format_bytes(held)}" if held else where)


def _job(job: JobView, names: dict[str, str]) -> LabJob:
    if job.state == "RUNNING":
        ops = f"{job.ops_done:,} of {job.ops_total:,} ops{' so far' if job.grows else ''}"
        detail = f"{ops} on {job.device}"
    else:
        place = "" if job.position is None else f"{job.position}. in the queue. "
        left = "" if job.estimate_s is None else f" About {format_seconds(job.estimate_s)} to go."
        detail = f"{place}{job.reason}{left}"
    part = job.ops_done / job.ops_total if job.ops_total and not job.grows else None
    return LabJob(job.job, _of_notebook(job, names), STATES.get(job.state, "waits"), detail, part)


def _of_notebook(job: JobView, names: dict[str, str]) -> str:
    name = names.get(job.session, "")
    return f"{job.cell} of {name}" if name else f"{job.cell} of {job.user}"
