"""Compare what the pool reported to its clients with what its database has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import sqlalchemy as sa

from djinn_lab.pool.bookkeeping.records import JobView
from djinn_lab.pool.database.tables import jobs, usage

ENDED = ("DONE", "FAILED", "CANCELLED")
OF_OUTCOME = {"done": "DONE", "failed": "FAILED", "cancelled": "CANCELLED"}
NOT_CHARGED = ("queued", "preempted", "restoring", "recovering")
TOLERANCE_S = 0.05
"""A segment's stages are summed up a little after its stretch in the ledger ends. On a busy machine that is
longer, and counts as ``dispatch``."""


@dataclass
class Reported:
    """What clients received about one job. ``done``: segments whose result came. ``state``: the last one, if
    the job's end was reported."""

    messages: int = 0
    done: set[int] = field(default_factory=set)
    state: str | None = None


@dataclass
class Findings:
    """``counts``: what was compared. ``wrong``: one sentence for each difference."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Log:
    """The notes file of one client, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.lost: list[str] = []
        """Sessions that the next pool did not continue."""

    def size(self) -> int:
        """Return the bytes of the file so far."""
        return self._path.stat().st_size if self._path.exists() else 0

    def new(self) -> dict[str, Reported]:
        """What was reported since the last call, by job."""
        found: dict[str, Reported] = {}
        content = self._path.read_bytes() if self._path.exists() else b""
        end = content.rfind(b"\n") + 1
        for line in content[self._read : end].splitlines():
            note = json.loads(line)
            if "lost" in note:
                self.lost.append(note["lost"])
                continue
            reported = found.setdefault(note["job"], Reported())
            reported.messages += 1
            if note.get("outcome") == "done":
                reported.done.add(note["segment"])
            if note.get("final"):
                reported.state = OF_OUTCOME[note["outcome"]]
            elif note.get("state") in ENDED:
                reported.state = note["state"]
        self._read = end
        return found


def check(engine: sa.Engine, reported: Mapping[str, Reported], findings: Findings) -> None:
    """Add to ``findings`` each difference between ``reported`` and the database, and each cell that failed:
    none fails because its pool was killed."""
    with engine.connect() as connection:
        rows = {
            row.job: row
            for part in _parts(list(reported))
            for row in connection.execute(sa.select(jobs.c.job, jobs.c.state).where(jobs.c.job.in_(part)))
        }
        charged = {
            (row.job, row.segment): row.stretches
            for part in _parts(list(reported))
            for row in connection.execute(
                sa.select(usage.c.job, usage.c.segment, sa.func.count().label("stretches"))
                .where(usage.c.job.in_(part))
                .group_by(usage.c.job, usage.c.segment)
            )
        }
        failed = connection.scalars(sa.select(jobs.c.job).where(jobs.c.state == "FAILED")).all()
    findings.wrong += [f"{job} failed, though every cell can run" for job in failed]
    for job, what in reported.items():
        findings.counts["messages"] += what.messages
        findings.counts["results of done segments"] += len(what.done)
        if job not in rows:
            findings.wrong.append(f"lost: {job}, which was reported to a client")
        elif what.state is not None and rows[job].state != what.state:
            findings.wrong.append(f"{job} was reported as {what.state} and is {rows[job].state}")
        for segment in what.done:
            if charged.get((job, segment), 0) != 1:
                stretches = charged.get((job, segment), 0)
                findings.wrong.append(f"segment {segment} of {job} is done and charged {stretches} times")


def check_whole(engine: sa.Engine, findings: Findings, charged_s: float) -> None:
    """Check all jobs and the ledger of the database, when nothing runs. ``charged_s``: device-seconds of all
    accounts, as the pool that leads now counts them."""
    with engine.connect() as connection:
        stretches = connection.execute(sa.select(usage).order_by(usage.c.started_at_s)).all()
        views = {row.job: row for row in connection.execute(sa.select(jobs)).all()}
    seconds: Counter[str] = Counter()
    segments: dict[str, list[int]] = {}
    charged_on: Counter[str] = Counter()
    ended_at: dict[str, float] = {}
    for row in stretches:
        seconds[row.job] += row.ended_at_s - row.started_at_s
        segments.setdefault(row.job, []).append(row.segment)
        charged_on[row.device] += row.ended_at_s - row.started_at_s
        ended_at[row.device] = max(ended_at.get(row.device, 0.0), row.ended_at_s)
        if row.job not in views:
            findings.wrong.append(f"charged for {row.job}, which is no job")
    for device, charged_device_s in charged_on.items():  # stretches overlap where brief cells are interleaved
        began_s = min(row.started_at_s for row in stretches if row.device == device)
        if charged_device_s > ended_at[device] - began_s + TOLERANCE_S:
            findings.wrong.append(f"{device} is charged for more than the time that passed")
    findings.counts["jobs"] = len(views)
    findings.counts["ledger rows"] = len(stretches)
    findings.counts.update(f"jobs {row.state}" for row in views.values())
    for job, row in views.items():
        view, charged = msgspec.json.decode(row.view, type=JobView), sorted(segments.get(job, []))
        if view.state not in ENDED:
            findings.wrong.append(f"{job} has not ended: {view.state}")
        if len(set(charged)) < len(charged):
            findings.wrong.append(f"{job} ran a segment twice: {charged}")
        if view.state == "DONE" and charged != list(range(view.segments)):
            findings.wrong.append(f"{job} has {view.segments} segments and is charged for {charged}")
        spent_s = sum(spent for stage, spent in view.stages.items() if stage not in NOT_CHARGED)
        worked_s, off_s = spent_s - view.stages.get("dispatch", 0.0), TOLERANCE_S * view.segments
        if view.state == "DONE" and not worked_s - off_s <= seconds[job] <= spent_s + off_s:
            said = {stage: round(spent, 3) for stage, spent in view.stages.items()}
            findings.wrong.append(f"{job} is charged {seconds[job]:.3f} s for {said}")
    total_s = sum(seconds.values())
    if abs(total_s - charged_s) > 1e-5 * (1 + len(stretches)):
        findings.wrong.append(f"accounts were charged {charged_s} s, the ledger says {total_s} s")


def _parts(names: list[str], size: int = 500) -> list[list[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]
