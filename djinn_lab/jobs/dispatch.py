"""Which job gets which device: binds sessions, and starts the head of every idle device's line."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.jobs.job import Job, line_order
from djinn_lab.jobs.messages import PlaceSegment, StartSegment
from djinn_lab.jobs.states import IN_LINE, JobState, Move
from djinn_lab.jobs.tables import Device, Tables, moved


def dispatch(tables: Tables, at_s: float) -> None:
    for job in sorted(tables.in_state(JobState.SUBMITTED), key=lambda job: job.arrival):
        if job.waits_for:
            continue
        chosen = tables.bound.get(job.session) or _choose_device(tables, job)
        if chosen is not None:
            tables.bound[job.session] = chosen
            _bind(tables, job, chosen)
    for name, device in sorted(tables.devices.items()):
        if device.alive and not device.cordoned and device.running is None:
            _start_head(tables, name, device, at_s)


def _start_head(tables: Tables, name: str, device: Device, at_s: float) -> None:
    line = line_order(job for job in tables.of_device(name) if job.state in IN_LINE)
    job = next((job for job in line if job.memory in ("free", "granted")), None)
    if job is None:
        return
    device.running = job.job
    started_at_s = job.started_at_s if job.started_at_s is not None else at_s
    started = replace(moved(job, Move.START), started_at_s=started_at_s, running_since_s=at_s, settled=False)
    tables.put(started)
    tables.out.append(StartSegment(job.job, job.segment, name))


def _bind(tables: Tables, job: Job, device: str) -> None:
    bound = replace(moved(job, Move.BIND), held_on=device)
    if bound.memory in ("ask", "held"):
        bound = moved(bound, Move.HOLD)
    if bound.memory == "ask":
        tables.out.append(PlaceSegment(job.job, job.segment, job.session, device))
    tables.put(bound)


def _choose_device(tables: Tables, job: Job) -> str | None:
    """The wished device if it is up, else the least loaded one, ties by name."""
    up = [name for name, device in tables.devices.items() if device.alive and job.wish in (None, name)]
    able = [name for name in up if not tables.devices[name].cordoned]
    load = dict.fromkeys(able, 0)
    waiting = [other.held_on for other in tables.in_state(*IN_LINE, JobState.RESTORING)]
    for name in (*tables.bound.values(), *waiting):
        if name in load:
            load[name] += 1
    return min(able, key=lambda name: (load[name], name), default=None)
