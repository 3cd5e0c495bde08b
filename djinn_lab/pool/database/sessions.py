"""Open sessions in the database: their users, how their values came to be, and their last answers.

A run's row, and the answer that it led to, are committed in one transaction before the answer leaves
(:meth:`djinn_lab.pool.database.store.Store.together`). So a pool that is started again after a crash knows of
each segment either both or neither. The other changes of a lineage (a whole copy, new serials, the loss of
all) replace its rows up to the present serial in one transaction of their own, some moments later: the rows
that they replace lead to the same values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from djinn_lab.pool.database.batch import Row, Work, WriteKind, statement
from djinn_lab.pool.database.tables import answers, copies, lineages, programs, releases, runs, sessions
from djinn_lab.pool.lineage.log import Copy, Run, SessionLog
from djinn_lab.protocol.messages import SegmentResult

ALL = (answers, copies, lineages, releases, runs, sessions)
UNREADABLE = "its runs are not whole in the database"
NO_SEGMENT = -1
"""Of a run without a program: nothing can be made again."""


class SessionRow(msgspec.Struct, frozen=True):
    """As in :class:`djinn_lab.pool.sessions.registry.ClientSession`. ``detached``: its client was away."""

    session: str
    user: str
    account: str
    name: str
    same_host: bool
    connected_at: float
    last_seen: float
    process: int | None = None
    jobs: int = 0
    detached: bool = False


class CopyOrigin(msgspec.Struct, frozen=True):
    """Of a manifest: the device at which it was made, the trust group that may read it, and values in it that
    the session had released by then."""

    device: str
    group: str
    released: tuple[int, ...]


class StoredLineage(msgspec.Struct, frozen=True):
    """A log's state beside its runs and releases."""

    copy: Copy | None
    void: str
    void_until: int
    spread: bool
    origin: CopyOrigin | None


class LeftSession(NamedTuple):
    """A session as a dead pool left it. ``origin``, ``manifest``: of its last whole copy, if there is one.
    ``answers``: the last of ``answered``, oldest first."""

    stored: SessionRow
    log: SessionLog
    origin: CopyOrigin | None
    manifest: bytes | None
    answers: Sequence[SegmentResult]
    answered: int


class _StoredRun(msgspec.Struct, frozen=True, array_like=True):
    """A :class:`~djinn_lab.pool.lineage.log.Run` without what the row has."""

    blobs: tuple[str, ...]
    key: bytes | None
    begin: int
    rng_state: bytes | None
    end: int | None
    closes: bool
    loaded: bool
    run_s: float
    peak_bytes: int
    held_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode_session = msgspec.msgpack.Decoder(SessionRow).decode
_decode_lineage = msgspec.msgpack.Decoder(StoredLineage).decode
_decode_run = msgspec.msgpack.Decoder(_StoredRun).decode
_decode_values = msgspec.msgpack.Decoder(list[int]).decode
_decode_answer = msgspec.msgpack.Decoder(SegmentResult).decode


def session_row(stored: SessionRow) -> Row:
    return Row(WriteKind.SESSION, {"session": stored.session, "state": _encode(stored)})


def run_row(session: str, run: Run) -> Row:
    return Row(WriteKind.RUN, _run_values(session, run))


def release_row(session: str, serial: int, values: Sequence[int]) -> Row:
    return Row(WriteKind.RELEASE, _release_values(session, serial, values))


def answer_row(session: str, number: int, slots: int, answer: SegmentResult) -> Row:
    """``slots``: answers that are kept."""
    values = {"session": session, "slot": number % slots, "number": number, "answer": _encode(answer)}
    return Row(WriteKind.ANSWER, values)


def write_left(left: LeftSession, slots: int) -> Work:
    """Write all of a session that an earlier pool left. ``slots``: answers that are kept."""
    first = left.answered - len(left.answers) + 1
    rows = [session_row(left.stored)]
    rows += [
        answer_row(left.stored.session, number, slots, answer)
        for number, answer in enumerate(left.answers, first)
    ]
    lineage = write_lineage(left.stored.session, left.log, left.origin, left.manifest)

    def write(connection: sa.Connection) -> None:
        for row in rows:
            connection.execute(statement(connection.dialect.name, row.kind), row.values)
        lineage(connection)

    return write


def write_lineage(session: str, log: SessionLog, origin: CopyOrigin | None, manifest: bytes | None) -> Work:
    """Replace a session's lineage as it is now. ``manifest``: of a new copy, None for the former one."""
    state = _encode(StoredLineage(log.copy, log.void, log.void_until, log.spread, origin))
    lasts = {runs: log.answered, releases: log.serials}  # the row of a run under way may be written before
    run_values = [_run_values(session, run) for run in log.runs]
    release_values = [_release_values(session, serial, values) for serial, values in log.released]
    copied = log.copy is not None

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.delete(lineages).where(lineages.c.session == session))
        connection.execute(sa.insert(lineages).values(session=session, state=state))
        if manifest is not None or not copied:
            connection.execute(sa.delete(copies).where(copies.c.session == session))
        if manifest is not None and copied:
            connection.execute(sa.insert(copies).values(session=session, manifest=manifest))
        for table, values in ((runs, run_values), (releases, release_values)):
            connection.execute(
                sa.delete(table).where(table.c.session == session, table.c.serial <= lasts[table])
            )
            if values:
                connection.execute(sa.insert(table), values)

    return write


def forget_session(session: str) -> Work:
    """Delete all that is known of a session."""

    def write(connection: sa.Connection) -> None:
        for table in ALL:
            connection.execute(sa.delete(table).where(table.c.session == session))

    return write


def forget_sessions(connection: sa.Connection) -> None:
    """Delete all sessions."""
    for table in ALL:
        connection.execute(sa.delete(table))


def read_sessions(connection: sa.Connection) -> list[LeftSession]:
    """Read all sessions that a dead pool left."""
    manifests = {row.session: row.manifest for row in connection.execute(sa.select(copies))}
    stored_lineages = {
        row.session: _decode_lineage(row.state) for row in connection.execute(sa.select(lineages))
    }
    logs = _read_logs(connection)
    kept: defaultdict[str, list[SegmentResult]] = defaultdict(list)
    answered: dict[str, int] = {}
    for row in connection.execute(sa.select(answers).order_by(answers.c.number)):
        kept[row.session].append(_decode_answer(row.answer))
        answered[row.session] = row.number
    found = []
    for row in connection.execute(sa.select(sessions)):
        log, lineage = logs[row.session], stored_lineages.get(row.session)
        if lineage is not None:
            _apply(log, lineage)
        if not all(run.program for run in log.runs):
            log.void = log.void or UNREADABLE
        origin = None if lineage is None or log.copy is None else lineage.origin
        manifest = manifests.get(row.session) if origin is not None else None
        name = row.session
        found.append(
            LeftSession(_decode_session(row.state), log, origin, manifest, kept[name], answered.get(name, 0))
        )
    return found


def _read_logs(connection: sa.Connection) -> defaultdict[str, SessionLog]:
    logs: defaultdict[str, SessionLog] = defaultdict(SessionLog)
    for row in connection.execute(sa.select(releases).order_by(releases.c.serial)):
        logs[row.session].released.append((row.serial, _decode_values(row.released)))
    same = (programs.c.job == runs.c.job) & (programs.c.segment == runs.c.segment)
    joined = sa.select(runs, programs.c.program).outerjoin(programs, same).order_by(runs.c.serial)
    for row in connection.execute(joined):
        log, one = logs[row.session], _decode_run(row.run)
        log.runs.append(
            Run(
                serial=row.serial,
                job=row.job,
                segment=row.segment,
                program=row.program or b"",
                blobs=one.blobs,
                key=one.key,
                begin=one.begin,
                rng_state=one.rng_state,
                end=one.end,
                closes=one.closes,
                loaded=one.loaded,
                run_s=one.run_s,
                peak_bytes=one.peak_bytes,
                held_bytes=one.held_bytes,
            )
        )
    for log in logs.values():
        serials = [*(run.serial for run in log.runs), *(serial for serial, _ in log.released)]
        log.serials = log.answered = max(serials, default=0)
    return logs


def _apply(log: SessionLog, lineage: StoredLineage) -> None:
    log.copy, log.spread = lineage.copy, lineage.spread
    log.void, log.void_until = lineage.void or log.void, lineage.void_until
    if lineage.copy is not None:
        log.serials = max(log.serials, lineage.copy.serial)
        log.runs = [run for run in log.runs if run.serial > lineage.copy.serial]
        log.released = [one for one in log.released if one[0] > lineage.copy.serial]


def _run_values(session: str, run: Run) -> dict[str, object]:
    kept = _StoredRun(
        *(tuple(run.blobs), run.key, run.begin, run.rng_state, run.end, run.closes, run.loaded),
        *(run.run_s, run.peak_bytes, run.held_bytes),
    )
    values = {"session": session, "serial": run.serial, "job": run.job, "segment": run.segment}
    return {**values, "run": _encode(kept)}


def _release_values(session: str, serial: int, values: Sequence[int]) -> dict[str, object]:
    return {"session": session, "serial": serial, "released": _encode(list(values))}
