"""Random histories of batch notebooks with checkpoints, data and cells, and servers that die: no notebook
waits for a dependency that is met or can never be, and announced checkpoints stay."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from test_batch_machine import SLOTS, BatchMachine

from djinn_lab.jobs import IllegalEvent
from djinn_lab.jobs.batch import (
    AttemptOutcome,
    CellJobEnded,
    CheckpointAnnounced,
    DataPublished,
    NotebookAccepted,
    Submission,
    TimePassed,
)
from djinn_lab.jobs.conditions import Need, jobs_in, parse

NAMES = ("one", "two")
CELLS = ("cell1", "cell2")


class DependencyHistories(BatchMachine):
    """``announced``: by cells that have not ended. ``ended``: the other cells."""

    def __init__(self) -> None:
        super().__init__()
        self.published: set[str] = set()
        self.announced: dict[str, tuple[str, ...]] = dict.fromkeys(CELLS, ())
        self.ended: dict[str, CellJobEnded] = {}

    @rule(
        count=st.none() | st.integers(1, 2),
        limit_s=st.none() | st.floats(1, 500),
        meanwhile=st.sampled_from((None, *NAMES)),
        data=st.data(),
    )
    def submit_after(
        self, count: int | None, limit_s: float | None, meanwhile: str | None, data: Any
    ) -> None:
        """``meanwhile``: data that is published while the notebook is stored."""
        others = [*(one.job for one in self.core), *CELLS]
        kinds = [f"{one}{kind}" for one in others for kind in ("", ":any", ":checkpoint", ":checkpoint=two")]
        kinds += [f"data:{name}" for name in NAMES]
        after = tuple(data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)))
        self.number += 1
        job = f"n{self.number}"
        asked = Submission(
            self.now_s,
            job,
            "ann",
            job,
            after=after,
            cells=tuple(self.announced),
            ended=tuple(self.ended.values()),
            met=self.met(after),
            after_count=count,
            after_timeout_s=limit_s,
        )
        try:
            notebook = self.core.admit(asked)
        except IllegalEvent:
            over = [one for one in self.core if one.over]
            assert over or self.ended or count is not None, "there was nothing that could never be"
            return
        self.database[job] = notebook
        if meanwhile is not None:
            self.publish(meanwhile)
        self.perform(self.core.handle(NotebookAccepted(self.now_s, notebook, self.met(after))))

    @precondition(lambda self: self.runners)
    @rule(name=st.sampled_from(NAMES), data=st.data())
    def announce(self, name: str, data: Any) -> None:
        job = data.draw(st.sampled_from(sorted(self.runners)))
        for _ in range(2):
            self.perform(self.core.handle(CheckpointAnnounced(self.now_s, job, name)))
        assert self.database[job].checkpoints.count(name) == 1

    @precondition(lambda self: self.announced)
    @rule(name=st.sampled_from(NAMES), data=st.data())
    def cell_announces(self, name: str, data: Any) -> None:
        job = data.draw(st.sampled_from(sorted(self.announced)))
        if name not in self.announced[job]:
            self.announced[job] += (name,)
        self.perform(self.core.handle(CheckpointAnnounced(self.now_s, job, name)))

    @precondition(lambda self: self.announced)
    @rule(state=st.sampled_from(("DONE", "FAILED")), data=st.data())
    def cell_ends(self, state: str, data: Any) -> None:
        job = data.draw(st.sampled_from(sorted(self.announced)))
        names = self.announced.pop(job)
        self.ended[job] = CellJobEnded(self.now_s, job, state == "DONE", state, names)
        self.perform(self.core.handle(self.ended[job]))

    @rule(name=st.sampled_from(NAMES))
    def publish(self, name: str) -> None:
        self.published.add(name)
        self.perform(self.core.handle(DataPublished(self.now_s, "ann", name)))

    @rule(
        outcomes=st.lists(
            st.sampled_from((None, AttemptOutcome.DONE, AttemptOutcome.FAILED)),
            min_size=SLOTS,
            max_size=SLOTS,
        )
    )
    def server_dies(self, outcomes: list[AttemptOutcome | None]) -> None:
        """As in the pool: cells end with their server, and the new server learns their ends and the data."""
        before = {one.job: one.checkpoints for one in self.core}
        super().server_dies(outcomes)
        assert {one.job: one.checkpoints for one in self.core} == before
        for job in sorted(self.announced):
            names = self.announced.pop(job)
            self.ended[job] = CellJobEnded(self.now_s, job, False, "FAILED", names)
        for job in sorted(self.core.awaited):
            self.perform(self.core.handle(self.ended[job]))
        for name in sorted(self.published):
            self.perform(self.core.handle(DataPublished(self.now_s, "ann", name)))

    @invariant()
    def pending_dependencies_have_not_ended(self) -> None:
        for one in self.core:
            if one.over:
                continue
            assert one.waiting.unsatisfiable is None
            assert (one.waiting.missing_count > 0) == bool(one.waits_for)
            living = {job for job in jobs_in(one.waits_for) if job not in self.announced}
            assert all(not self.database[job].over for job in living if job not in CELLS)
            assert not self.met(one.waits_for)
            for text in one.waits_for:
                names = self.core.checkpoints(parse(text).job)
                assert not any(parse(text).met_by_checkpoint(parse(text).job, name) for name in names)

    @rule(seconds=st.floats(0, 400))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.perform(self.core.handle(TimePassed(self.now_s)))
        for one in self.core:
            assert one.gives_up_at_s is None or one.gives_up_at_s > self.now_s

    def met(self, after: tuple[str, ...]) -> tuple[str, ...]:
        """Dependencies that are met: on published data, and on cells that still run."""
        found = []
        for text in after:
            one = parse(text)
            names = self.announced.get(one.job, ())
            there = one.need is Need.DATA and one.name in self.published
            if there or any(one.met_by_checkpoint(one.job, name) for name in names):
                found.append(text)
        return tuple(found)


DependencyHistories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDependencyHistories = DependencyHistories.TestCase
