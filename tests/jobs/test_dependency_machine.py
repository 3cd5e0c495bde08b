"""Any order of events, with jobs that depend on checkpoints, data and batch notebooks: no job waits for a
dependency that is met or can never be."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from test_queue_machine import JOBS, SESSIONS, QueueMachine

from djinn_lab.jobs import (
    CheckpointAnnounced,
    ClockTicked,
    DataPublished,
    ExternalDependency,
    ExternalDependencyChanged,
    SegmentSubmitted,
    Terms,
)
from djinn_lab.jobs.conditions import Need, parse, same_project

NAMES = ("one", "two")
NOTEBOOKS = ("nb1", "nb2")
OVER = ("DONE", "FAILED", "CANCELLED")


class DependencyMachine(QueueMachine):
    """``published``: (account, name). ``notebooks``: as the pool knows them."""

    def __init__(self) -> None:
        super().__init__()
        self.published: set[tuple[str, str]] = set()
        self.notebooks = {job: ExternalDependency(job, f"name of {job}", "RUNNING") for job in NOTEBOOKS}

    @rule(
        job=JOBS,
        session=SESSIONS,
        final=st.booleans(),
        count=st.none() | st.integers(1, 2),
        limit_s=st.none() | st.floats(1, 6),
        of_notebook=st.booleans(),
        data=st.data(),
    )
    def submit_after(
        self,
        job: str,
        session: str,
        final: bool,
        count: int | None,
        limit_s: float | None,
        of_notebook: bool,
        data: Any,
    ) -> None:
        kinds = [f"{one}{kind}" for one in NOTEBOOKS for kind in ("", ":any", ":checkpoint=one")]
        kinds += [f"job{n}{kind}" for n in range(8) for kind in (":any", ":checkpoint", ":checkpoint=two")]
        kinds += [f"data:{name}" for name in NAMES]
        after = tuple(data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)))
        account = self.account_of(session)
        conditions = [parse(text) for text in after]
        wanted = [text for text, one in zip(after, conditions, strict=True) if one.need is Need.DATA]
        self.feed(
            SegmentSubmitted(
                self.tick(),
                job,
                0,
                session,
                session,
                "NORMAL",
                3,
                final,
                account=account,
                terms=Terms(after=after, after_count=count, after_timeout_s=limit_s),
                met=tuple(text for text in wanted if self.is_there(account, parse(text).name)),
                external=tuple(self.notebooks[one.job] for one in conditions if one.job in self.notebooks),
                notebook="nb9" if of_notebook else "",
            )
        )

    @rule(job=JOBS, name=st.sampled_from((*NAMES, "a,b", "")))
    def announce(self, job: str, name: str) -> None:
        known = self.queue.job(job)
        goes = known is not None and not known.finished and name in NAMES
        assert (self.feed(CheckpointAnnounced(self.tick(), job, name)) is not None) == goes
        after = self.queue.job(job)
        assert not goes or (after is not None and after.checkpoints.count(name) == 1)

    @rule(session=SESSIONS, name=st.sampled_from(NAMES))
    def publish(self, session: str, name: str) -> None:
        self.published.add((self.account_of(session), name))
        assert self.feed(DataPublished(self.tick(), self.account_of(session), name)) is not None

    @rule(
        job=st.sampled_from(NOTEBOOKS), state=st.sampled_from(("QUEUED", *OVER)), name=st.sampled_from(NAMES)
    )
    def notebook_changes(self, job: str, state: str, name: str) -> None:
        before = self.notebooks[job]
        if before.over:
            return
        names = (*before.checkpoints, *(() if name in before.checkpoints else (name,)))
        self.notebooks[job] = ExternalDependency(job, before.name, state, state in OVER, names)
        assert self.feed(ExternalDependencyChanged(self.tick(), self.notebooks[job])) is not None

    @rule()
    def time_passes(self) -> None:
        due_s = self.queue.due_s()
        assert self.feed(ClockTicked(self.tick())) is not None
        assert due_s is None or due_s > self.now_s or (self.queue.due_s() or self.now_s + 1) > self.now_s

    @invariant()
    def no_job_waits_for_what_is_met_or_impossible(self) -> None:
        for job in self.queue.snapshot().jobs:
            for text in job.waits_for:
                condition = parse(text)
                if condition.need is Need.DATA:
                    assert not self.is_there(job.account, condition.name)
                    continue
                notebook, cell = self.notebooks.get(condition.job), self.queue.job(condition.job)
                names = cell.checkpoints if cell is not None else notebook.checkpoints if notebook else ()
                over = cell.finished if cell is not None else notebook is None or notebook.over
                assert not over
                assert not any(condition.met_by_checkpoint(condition.job, name) for name in names)
            assert job.waiting.unsatisfiable is None

    def account_of(self, session: str) -> str:
        return {"s0": "vision/s0", "s1": "vision/s1", "s2": "speech/s2"}.get(session, session)

    def is_there(self, account: str, name: str) -> bool:
        return any(same_project(account, one) and name == called for one, called in self.published)


DependencyMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDependencyMachine = DependencyMachine.TestCase
