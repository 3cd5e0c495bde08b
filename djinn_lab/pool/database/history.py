"""Reading jobs, programs, journal and measurements back from the database."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from djinn_lab.journal import Record
from djinn_lab.pool.bookkeeping.records import JobResume
from djinn_lab.pool.database import tables
from djinn_lab.pool.database.store import StoredTimes
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.status import JournalLine
from djinn_lab.protocol.worker import DeviceMeasured, NodeTimes
from djinn_lab.srg.curves import DeviceCurves

JOBS_LOOKED_AT = 5000

log = logging.getLogger(__name__)

_decode_timings = msgspec.msgpack.Decoder(bytes | tuple[list[float], list[float]] | StoredTimes).decode
_decode_resume = msgspec.json.Decoder(JobResume).decode
_decode_view = msgspec.json.Decoder(JobView).decode


class StoredPart(msgspec.Struct, frozen=True):
    """Hold a stored segment. ``timings``: per node start and end in seconds, when it ran. ``node_devices``:
    which device ran each node, where a gang did."""

    program: bytes
    timings: tuple[Sequence[float], Sequence[float]] | None
    node_devices: tuple[str, ...] = ()


class StoredProgram(msgspec.Struct, frozen=True):
    """Hold what was recorded between two cuts, in the parts it was sent in. ``segment``: the last part's
    number."""

    segment: int
    parts: list[StoredPart]


def read_jobs(
    connection: sa.Connection,
    state: str | None,
    user: str | None,
    limit: int,
    wanted: Callable[[JobView], bool],
) -> list[JobView]:
    """Read the newest wanted jobs, newest first; of the newest JOBS_LOOKED_AT at the most."""
    query = sa.select(tables.jobs.c.view).order_by(tables.jobs.c.submitted_at.desc())
    if state is not None:
        query = query.where(tables.jobs.c.state == state)
    if user is not None:
        query = query.where(tables.jobs.c.user == user)
    query = query.limit(max(limit, JOBS_LOOKED_AT))
    with connection.execute(query, execution_options={"yield_per": limit}) as rows:
        return list(islice(filter(wanted, (_decode_view(row.view) for row in rows)), limit))


def read_job(connection: sa.Connection, start: str) -> list[tuple[JobView, str]]:
    """Views and cell code of the one job of that id, else of at most two whose ids start so."""
    table = tables.jobs
    query = sa.select(table.c.job, table.c.view, table.c.code)
    rows = connection.execute(
        query.where(table.c.job.startswith(start, autoescape=True)).order_by(table.c.job).limit(2)
    ).all()
    exact = [row for row in rows if row.job == start]
    return [(_decode_view(row.view), row.code) for row in exact or rows]


def read_names(connection: sa.Connection, limit: int) -> list[str]:
    """Read the newest jobs' ids, oldest first."""
    table = tables.jobs
    newest = sa.select(table.c.job).order_by(table.c.submitted_at.desc()).limit(limit)
    return list(connection.scalars(newest))[::-1]


def read_parts(connection: sa.Connection, job: str, ends: Sequence[int]) -> list[StoredProgram]:
    """Read all that was recorded, from each cut to the next, in order. ``ends``: the segments that end with
    a cut."""
    table = tables.programs
    query = sa.select(table.c.segment, table.c.program, table.c.timings).where(table.c.job == job)
    stretches: dict[int, StoredProgram] = {}
    for row in connection.execute(query.order_by(table.c.segment)):
        place = bisect_left(ends, row.segment)
        parts = stretches[place].parts if place in stretches else []
        parts.append(_stored_part(row.program, row.timings))
        stretches[place] = StoredProgram(row.segment, parts)
    return list(stretches.values())


def read_program(
    connection: sa.Connection, job: str, segment: int | None, ends: Sequence[int]
) -> StoredProgram | None:
    """Read what was recorded between two cuts, one of which is at or behind ``segment`` (None: the most that
    was). ``ends``: the segments that end with a cut."""
    table = tables.programs
    query = sa.select(table.c.segment, table.c.nbytes).where(table.c.job == job).order_by(table.c.segment)
    sizes: dict[int, int] = {}
    stretches: dict[int, list[int]] = {}
    for row in connection.execute(query):
        sizes[row.segment] = row.nbytes
        stretches.setdefault(bisect_left(ends, row.segment), []).append(row.segment)
    if segment is None:
        chosen = max(stretches.values(), key=lambda stretch: sum(sizes[one] for one in stretch), default=[])
    else:
        chosen = stretches.get(bisect_left(ends, segment), []) if segment in sizes else []
    if not chosen:
        return None
    found = connection.execute(
        sa.select(table.c.program, table.c.timings)
        .where((table.c.job == job) & table.c.segment.in_(chosen))
        .order_by(table.c.segment)
    )
    return StoredProgram(chosen[-1], [_stored_part(row.program, row.timings) for row in found])


def _stored_part(program: bytes, timings: bytes | None) -> StoredPart:
    """Earlier pools stored two lists."""
    if timings is None:
        return StoredPart(program, None)
    found = _decode_timings(timings)
    if isinstance(found, tuple):
        return StoredPart(program, found)
    stored = found if isinstance(found, StoredTimes) else StoredTimes(found)
    times = NodeTimes(node_times=stored.node_times)
    return StoredPart(program, (times.node_start_s, times.node_end_s), stored.node_devices)


def read_events(connection: sa.Connection, pool: str, after: int | None, limit: int) -> list[JournalLine]:
    """Read this pool's events after ``after``, or the last ones; oldest first."""
    table = tables.journal
    query = sa.select(table.c.seq, table.c.at_s, table.c.event, table.c.detail).where(table.c.pool == pool)
    if after is not None:
        query = query.where(table.c.seq > after).order_by(table.c.seq)
    else:
        query = query.order_by(table.c.seq.desc())
    rows = [
        JournalLine(row.seq, row.at_s, row.event, msgspec.Raw(row.detail.encode()))
        for row in connection.execute(query.limit(limit))
    ]
    return rows if after is not None else rows[::-1]


def newest_pool(connection: sa.Connection) -> str | None:
    """Whose events are the last of the journal; None for an empty one."""
    table = tables.journal
    return connection.scalar(sa.select(table.c.pool).order_by(table.c.seq.desc()).limit(1))


def read_journal(connection: sa.Connection, pool: str) -> Iterator[Record]:
    """Read all kept events of a pool's run, oldest first."""
    table = tables.journal
    query = sa.select(table).where(table.c.pool == pool).order_by(table.c.seq)
    for row in connection.execution_options(yield_per=1000).execute(query):
        yield Record(**row._mapping)


def read_measurements(connection: sa.Connection) -> dict[tuple[str, int, str], DeviceMeasured]:
    """Read device measurements by device name, thread count and torch version. Those that an older version
    wrote in another form are left out: such devices are measured again."""
    found = {}
    for row in connection.execute(sa.select(tables.device_profiles)):
        try:
            curves = msgspec.msgpack.decode(row.curves, type=DeviceCurves)
        except msgspec.MsgspecError as error:
            log.warning("the measurement of %s cannot be read: %s", row.name, error)
            continue
        found[row.name, row.threads, row.torch_version] = DeviceMeasured(curves)
    return found


class LeftJob(NamedTuple):
    """A job that a dead pool left unfinished, with what is needed to continue it."""

    view: JobView
    code: str
    resume: JobResume


ENDED = ("DONE", "FAILED", "CANCELLED")


def read_left_jobs(connection: sa.Connection) -> list[LeftJob]:
    """Read the jobs that dead pools left unfinished, in the order in which they were submitted."""
    table = tables.jobs
    query = sa.select(table).where(table.c.state.not_in(ENDED) & (table.c.resume != ""))
    rows = connection.execute(query.order_by(table.c.submitted_at))
    return [LeftJob(_decode_view(row.view), row.code, _decode_resume(row.resume)) for row in rows]


def read_ended(connection: sa.Connection, names: Sequence[str]) -> list[JobView]:
    """Read those of these jobs that have ended."""
    table = tables.jobs
    query = sa.select(table.c.view).where(table.c.job.in_(names) & table.c.state.in_(ENDED))
    return [_decode_view(row.view) for row in connection.execute(query)]


def read_ended_from(connection: sa.Connection, starts: Sequence[str]) -> list[JobView]:
    """Read the jobs that ended and whose ids begin so; those of which several do, so that the start is seen
    to be ambiguous."""
    found = (view for start in starts for view, _ in read_job(connection, start) if view.state in ENDED)
    return list({view.job: view for view in found}.values())


def end_jobs_of_dead_pools(connection: sa.Connection, pool: str, spared: Collection[str] = ()) -> None:
    """Jobs that an earlier pool left unfinished are FAILED, and say so. They ended when that pool was last
    known to live, not now. ``spared``: those that continue."""
    table = tables.jobs
    unfinished = sa.select(table).where((table.c.pool != pool) & table.c.state.not_in(ENDED))
    last_s: dict[str, float] = {}
    for row in connection.execute(unfinished).all():
        if row.job in spared:
            continue
        if row.pool not in last_s:
            last_s[row.pool] = _last_event_s(connection, row.pool)
        known = _decode_view(row.view)
        view = msgspec.structs.replace(
            known,
            state="FAILED",
            reason="Failed: the pool stopped while the job was unfinished.",
            position=None,
            estimate_s=None,
            finished_at=max(known.submitted_at, known.started_at or 0.0, last_s[row.pool]),
        )
        values = {"state": "FAILED", "view": msgspec.json.encode(view).decode(), "resume": ""}
        connection.execute(sa.update(table).where(table.c.job == row.job).values(values))


def _last_event_s(connection: sa.Connection, pool: str) -> float:
    """Return the time of a pool's last event in the journal, 0 without any."""
    table = tables.journal
    newest = sa.select(table.c.at_s).where(table.c.pool == pool).order_by(table.c.seq.desc()).limit(1)
    return connection.scalar(newest) or 0.0
