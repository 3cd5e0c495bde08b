"""Continues the sessions and jobs of a pool that was killed, in the next pool on its database.

Each session comes back with its log and its last whole copy, as after the loss of its worker, and waits for
its client as after a broken connection. Each of its unfinished jobs waits for its client's next segment: the
client sends again what was not answered, and is sent again what was."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import sqlalchemy as sa
from msgspec.structs import replace

from djinn_lab import jobs, memory
from djinn_lab.jobs.conditions import jobs_in
from djinn_lab.pool.authentication import Authentication
from djinn_lab.pool.bookkeeping.records import JobRecord, ended_job
from djinn_lab.pool.database.history import LeftJob, end_jobs_of_dead_pools, read_ended, read_left_jobs
from djinn_lab.pool.database.sessions import LeftSession, forget_sessions, read_sessions, write_left
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.devices.launcher import TakenCopy
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.sessions.registry import ANSWERS_KEPT, ClientSession, Outgoing
from djinn_lab.protocol.rest.jobs import JobView

GONE = "what was parked of it is not on this machine any more"


TakeCopies = Callable[[Sequence[LeftSession]], Mapping[str, TakenCopy]]
"""Takes over the copies of sessions, by session; those that are gone are left out."""


class Left(NamedTuple):
    """What a dead pool left. ``ended``: jobs on which others of ``jobs`` depend."""

    sessions: Sequence[LeftSession]
    jobs: Sequence[LeftJob]
    ended: Sequence[JobView]


def read_left(connection: sa.Connection) -> Left:
    """Read what a dead pool left."""
    sessions = read_sessions(connection)
    names = {one.stored.session for one in sessions}
    left = [one for one in read_left_jobs(connection) if one.view.session in names]
    depended = sorted({name for one in left for name in jobs_in(one.resume.terms.after)})
    return Left(sessions, left, read_ended(connection, depended))


def return_sessions(
    driver: Driver, store: Store, authentication: Authentication, take_copies: TakeCopies
) -> None:
    """Continue what a dead pool left, and end what cannot be continued. Blocks. Raises SQLAlchemyError."""
    left = store.submit(read_left).result()
    sessions = [one for one in left.sessions if authentication.named(one.stored.user) is not None]
    copies = take_copies(sessions)
    names = {one.stored.session for one in sessions}
    continued = [one for one in left.jobs if one.view.session in names]
    spread = {one.stored.session for one in sessions if one.log.spread}
    with driver.accounting.together():
        kept = [_return_session(driver, one, copies, continued) for one in sessions]
        _return_jobs(driver, left.ended, continued, spread)
    pool, spared = driver.core.pool, {one.view.job for one in continued}

    def write(connection: sa.Connection) -> None:
        forget_sessions(connection)
        for one in kept:
            write_left(one, ANSWERS_KEPT)(connection)
        end_jobs_of_dead_pools(connection, pool, spared)

    store.submit(write).result()


def _return_session(
    driver: Driver, left: LeftSession, copies: Mapping[str, TakenCopy], continued: Sequence[LeftJob]
) -> LeftSession:
    """Continue a session, and return it as it is in the database from now on."""
    stored, now_s = left.stored, driver.core.clock.now_s()
    session = ClientSession(
        *(stored.session, stored.user, stored.account, stored.name, stored.same_host, stored.connected_at),
        last_seen=stored.last_seen if stored.detached else now_s,
        link=None,
        jobs=stored.jobs,
        process=stored.process,
        awaited=not stored.detached,
        answered=left.answered,
    )
    session.answers = deque((Outgoing(answer, None) for answer in left.answers), maxlen=ANSWERS_KEPT)
    if left.answers and left.answers[-1].outcome == "done":
        session.done = (left.answers[-1].job, left.answers[-1].segment)
    driver.registry.return_session(session)
    copy = copies.get(stored.session)
    if left.origin is not None and left.origin.group != driver.trust_group(stored.session):
        copy = None  # the pool was started with another isolation
    under_way = (
        one.view.cell for one in continued if one.view.session == stored.session and one.resume.in_flight
    )
    why = driver.recovery.returned(left, "" if copy else GONE, next(under_way, ""))
    if why:
        session.lost = f"The pool was killed and started again, and this session's values are lost: {why}."
        left = left._replace(origin=None, manifest=None)
    elif copy is not None and left.origin is not None:
        manifest_released = [*left.origin.released, *(v for _, values in left.log.released for v in values)]
        driver.transfers.returned(stored.session, copy.manifest, manifest_released)
        left = left._replace(manifest=copy.manifest)
    rebuild = driver.recovery.rebuild_of(stored.session)
    driver.handle(
        memory.SessionReturned(
            at_s=now_s,
            session=stored.session,
            user=stored.user,
            connected=not stored.detached,
            device=left.origin.device if left.origin is not None else "",
            copy_bytes=rebuild.copy_bytes,
            disk_bytes=min(rebuild.copy_bytes, copy.disk_bytes) if copy is not None else 0,
            rebuild_bytes=driver.recovery.replay_bytes(stored.session),
            peak_bytes=rebuild.peak_bytes,
        )
    )
    return left


def _return_jobs(
    driver: Driver, ended: Sequence[JobView], continued: Sequence[LeftJob], spread: Set[str]
) -> None:
    """``ended``: jobs on which some of ``continued`` depend. ``spread``: sessions that had a cell under way
    on several devices, which runs anew."""
    now_s = driver.core.clock.now_s()
    for view in ended:
        driver.handle(ended_job(view, now_s))
    for one in continued:
        view, resume = one.view, one.resume
        if view.session in spread or driver.recovery.was_lost(view.session):
            resume = replace(resume, stops=None)
        driver.accounting.return_job(JobRecord.returned(view, one.code, resume))
        driver.handle(
            jobs.JobReturned(
                now_s,
                *(view.job, view.session, view.user, resume.answered, view.priority, resume.account),
                ops_before=resume.ops_before,
                submitted_at_s=view.submitted_at,
                started_at_s=view.started_at,
                ran_s=resume.ran_s,
                preemptions=resume.preemptions,
                terms=resume.terms,
                deadline_at_s=resume.deadline_at_s,
                dependency_results=resume.dependency_results,
                checkpoints=view.checkpoints,
            )
        )
