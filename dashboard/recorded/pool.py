"""What a recorded pool would have answered at a moment, to the requests by which the pages learn of it."""

from __future__ import annotations

import math
from pathlib import Path

import httpx
import msgspec

from djinn_lab.client.requests import Query
from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.recorded.run import RecordedRun
from djinn_lab.engine import Engine
from djinn_lab.errors import PoolError, UserError
from djinn_lab.jobs import Job, JobState
from djinn_lab.jobs.start_forecasts import StartSkill
from djinn_lab.pool.api import queue_report
from djinn_lab.pool.api.status import name_sessions
from djinn_lab.pool.database.history import read_program
from djinn_lab.pool.database.recording import opened, read_recorded_jobs
from djinn_lab.protocol.rest.jobs import UNFINISHED, JobDetail, JobPage, JobView, job_events, matches_text
from djinn_lab.protocol.rest.notebooks import NotebookView
from djinn_lab.protocol.rest.queue import QueueView, WhyAnswer
from djinn_lab.protocol.rest.sessions import MemoryView, SessionView
from djinn_lab.protocol.rest.snapshot import PoolSnapshot
from djinn_lab.protocol.rest.status import DeviceView, PoolStatus
from djinn_lab.srg.merging import merge_programs
from djinn_lab.srg.program import Program, decode_program

JOBS_MAX = 50_000
"""Of a file, as many of its newest jobs are shown."""
ADVICE = "It has the pool's queue, jobs and session memory."


class RecordedPool(PoolClient):
    """A pool at one moment of a recording. ``problem``: why the names of cells and their code are not known,
    empty where they are. ``used``: memory in the time before."""

    def __init__(self, run: RecordedRun, at_s: float) -> None:
        self.url = ""
        self._run, self._at_s = run, at_s
        self._engine, self.used = run.engine_at(at_s)
        self._stored, self.problem = _stored_jobs(run.path, at_s)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: msgspec.Struct | bytes | None = None,
    ) -> httpx.Response:
        """Refuse everything that is not answered here."""
        raise PoolError("This is the recording of a pool, which does not say that.", ADVICE)

    def status(self) -> PoolStatus:
        """Show the devices, and count the jobs by state."""
        views = self._all_jobs(fetches=False)
        counts = dict.fromkeys((state.value for state in JobState), 0)
        for view in views:
            counts[view.state] += 1
        return PoolStatus(
            pool=self._run.pool,
            version=self._run.version,
            started_at=self._run.begins_at,
            uptime_s=self._at_s - self._run.begins_at,
            now=self._at_s,
            ready=True,
            devices=_devices(self._engine),
            sessions=len(self._engine.accounts.snapshot().sessions),
            jobs=counts,
        )

    def snapshot(self, jobs: int = 100) -> PoolSnapshot:
        """Show all that a page shows at once."""
        return PoolSnapshot(
            self.status(), tuple(self.sessions()), tuple(self.jobs(limit=jobs)), self.memory()
        )

    def sessions(self) -> list[SessionView]:
        """List the sessions; a recording does not say what notebooks are called."""
        cells = self._cells_by_session()
        return [
            SessionView(
                session=account.session,
                user=account.user,
                device=self._engine.queue.device_of(account.session),
                state=account.connection.value,
                phase=account.phase.value,
                used_bytes=self._engine.accounts.session_bytes(account.session),
                jobs=cells.get(account.session, 0),
            )
            for account in self._engine.accounts.snapshot().sessions
        ]

    def memory(self) -> MemoryView:
        """Show where the state of all sessions was, and what session memory did."""
        known = {session: ("", cells) for session, cells in self._cells_by_session().items()}
        return name_sessions(self._engine.accounts.snapshot(), known, self._at_s)

    def queue(self) -> QueueView:
        """Show which jobs waited and why, which ran, and what every account had used."""
        queue = self._engine.queue
        snapshot = queue.decision(self._at_s)
        explained = [request.job for request in snapshot.cluster.waiting[: queue_report.EXPLAINED_MAX]]
        waiting = (job for name in explained if (job := queue.job(name)) is not None)
        others = queue.waits_without_contending(queue_report.EXPLAINED_MAX - len(explained))
        jobs = (*waiting, *queue.running_jobs())
        return queue_report.report(jobs, snapshot, others, None, 0.0, StartSkill(), queue.decided_s, {})

    def notebooks(
        self, state: str | None = None, user: str | None = None, limit: int = 100
    ) -> list[NotebookView]:
        """List none: the journal does not have them."""
        return []

    def jobs(
        self, state: str | None = None, user: str | None = None, limit: int = 100, fetches: bool = False
    ) -> list[JobView]:
        """List the newest jobs as they were then."""
        found = self._all_jobs(fetches)
        return [view for view in found if state in (None, view.state) and user in (None, view.user)][:limit]

    def job_page(
        self,
        state: str | None = None,
        user: str | None = None,
        find: str = "",
        before: str | None = None,
        limit: int = 200,
        fetches: bool = False,
    ) -> JobPage:
        """Look through all jobs as they were then; notebooks have no names."""
        found = [
            view
            for view in self._all_jobs(fetches)
            if user in (None, view.user) and matches_text(view, find, {})
        ]
        live = [view for view in found if not view.finished]
        if state is None:
            mine = [view for view in found if view.finished]
        else:
            mine = live if state == UNFINISHED else [view for view in found if view.state == state]
        first = None if before is None else self._find(before)
        place = (math.inf, "") if first is None else (first.submitted_at, first.job)
        behind = [view for view in mine if (view.submitted_at, view.job) < place]
        live = live if state is None else []
        return JobPage(
            tuple(behind[:limit]), len(mine), len(mine) - len(behind), tuple(live[:limit]), len(live)
        )

    def _all_jobs(self, fetches: bool) -> list[JobView]:
        """Return all jobs as they were then, newest first."""
        known = {job.job: job for job in self._engine.queue.snapshot().jobs}
        found = [self._then(view, self._job(view.job)) for view, _ in self._stored.values()]
        found += [self._then(JobView(name), job) for name, job in known.items() if name not in self._stored]
        listed = [view for view in found if view is not None and (fetches or not _is_over(view))]
        return sorted(listed, key=lambda view: (view.submitted_at, view.job), reverse=True)

    def job(self, job: str) -> JobDetail:
        """Show a job with its events up to then, and its code."""
        view = self._find(job)
        events = job_events(view.job, self._engine.queue.story(view.job))
        code = self._stored[view.job][1] if view.job in self._stored else ""
        return JobDetail(**msgspec.structs.asdict(view), code=code, events=events)

    def why(self, job: str) -> WhyAnswer:
        """Explain where a job was."""
        view, queue = self._find(job), self._engine.queue
        known = queue.job(view.job)
        if known is None:
            return WhyAnswer(view.job, view.state, view.reason)
        plain = queue.explain(view.job)
        return queue_report.why(known, plain, queue.decision(self._at_s), queue.decided_s, StartSkill())

    def program(self, job: str, segment: int | None = None) -> Program:
        """Read the program of a segment (default: the largest), also of one that came later."""
        view = self._find(job)
        ends = [cut.segment for cut in self._stored[view.job][0].cuts] if view.job in self._stored else []
        with opened(self._run.path) as connection:
            stored = read_program(connection, view.job, segment, ends)
        if stored is None:
            raise PoolError(
                f"The recording has no graph of job {view.job}.", "A pool keeps those of its newest 200 jobs."
            )
        return merge_programs([decode_program(part.program) for part in stored.parts])

    def _find(self, job: str) -> JobView:
        found = [view for view in self._all_jobs(fetches=True) if view.job.startswith(job)]
        if len(found) != 1:
            raise PoolError(f"The recording has no job {job[:80]!r} at this moment.")
        return found[0]

    def _job(self, name: str) -> Job | None:
        return self._engine.queue.job(name)

    def _then(self, stored: JobView, job: Job | None) -> JobView | None:
        """Return a job as it was then; None for one of which nothing is known for that moment. ``stored``:
        as it was at last."""
        if stored.finished_at is not None and stored.finished_at <= self._at_s:
            return stored
        if job is None:
            return None
        position = self._engine.queue.queue_position(job.job)
        return msgspec.structs.replace(
            stored,
            session=job.session,
            user=job.user,
            priority=job.priority,
            state=job.state.value,
            reason=self._engine.queue.explain(job.job),
            device=job.assigned_device,
            position=None if position is None else position.position,
            estimate_s=None,
            submitted_at=job.submitted_at_s,
            started_at=job.started_at_s,
            finished_at=job.ended_at_s,
            segments=job.segment + 1,
            ops_done=job.ops_before + job.ops_done,
            ops_total=job.ops_before + job.ops_total,
            stages={},
            cuts=tuple(cut for cut in stored.cuts if cut.segment <= job.segment),
            error=None,
            measured_s=None,
            checkpoints=job.checkpoints,
            used_j=None,
            ran_s=job.ran_s,
            running_since=job.running_since_s,
        )

    def _cells_by_session(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for view in self._all_jobs(fetches=True):
            counts[view.session] = counts.get(view.session, 0) + 1
        return counts


def _devices(engine: Engine) -> tuple[DeviceView, ...]:
    lengths = engine.queue.queue_lengths()
    found = []
    for view in engine.queue.devices():
        account = engine.accounts.device(view.device)
        state = "lost" if not view.alive else "busy" if view.running is not None else "idle"
        found.append(
            DeviceView(
                device=view.device,
                kind=view.device.partition(":")[0],
                state=state,
                memory_bytes=account.memory_bytes if account else 0,
                used_bytes=account.used_bytes if account else 0,
                reserved_bytes=account.reserved_bytes if account else 0,
                peak_bytes=account.peak_bytes if account else 0,
                job=view.running,
                queue_length=lengths[view.device],
                session_bytes=dict(account.session_bytes) if account else {},
                cordoned=view.cordoned,
                labels=view.labels,
                taints=view.taints,
                price=view.price,
                own_labels=view.own_labels,
                watts=view.watts,
            )
        )
    return tuple(found)


def _stored_jobs(path: Path, at_s: float) -> tuple[dict[str, tuple[JobView, str]], str]:
    """Read what the file's table of jobs has, or why it cannot be read."""
    try:
        return read_recorded_jobs(path, at_s, JOBS_MAX), ""
    except UserError as error:
        return {}, error.message


def _is_over(view: JobView) -> bool:
    return view.is_fetch and view.state == "DONE"
