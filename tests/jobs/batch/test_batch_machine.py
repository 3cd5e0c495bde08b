"""Random histories of batch notebooks, with servers that die: slots, attempts and dependencies stay right."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from djinn_lab.jobs import IllegalEvent, Priority
from djinn_lab.jobs.batch import (
    TRANSITIONS,
    AttemptOutcome,
    BatchNotebook,
    CancelAsked,
    Command,
    NotebookAccepted,
    NotebookEnded,
    NotebookExplainer,
    Notebooks,
    NotebookState,
    Restart,
    RestartRules,
    SaveNotebook,
    ServerStarted,
    StartNotebook,
    StopNotebook,
    Submission,
    TimePassed,
)

MOVES = {(before, after) for (before, _), after in TRANSITIONS.items()}
SLOTS = 2


class BatchMachine(RuleBasedStateMachine):
    """A database and runners around the core, as in a pool. ``runners``: attempts that still run, by job."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Notebooks(SLOTS)
        self.now_s = 0.0
        self.database: dict[str, BatchNotebook] = {}
        self.runners: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.number = 0

    def perform(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case SaveNotebook(notebook):
                    before = self.database.get(notebook.job)
                    if before is not None and before.state is not notebook.state:
                        assert (before.state, notebook.state) in MOVES
                    self.database[notebook.job] = notebook
                case StartNotebook(job, attempt):
                    stored = self.database[job]
                    assert (stored.state, stored.attempts) == (NotebookState.RUNNING, attempt)
                    assert job not in self.runners
                    self.runners[job] = attempt
                    self.starts[job] = self.starts.get(job, 0) + 1
                case StopNotebook(job, attempt):
                    assert self.runners[job] == attempt

    @rule(
        user=st.sampled_from(("ann", "ben")),
        priority=st.sampled_from(list(Priority)),
        policy=st.sampled_from(list(Restart)),
        restarts=st.none() | st.integers(1, 2),
        timeout_s=st.none() | st.floats(1, 50),
        data=st.data(),
    )
    def submit(
        self,
        user: str,
        priority: str,
        policy: Restart,
        restarts: int | None,
        timeout_s: float | None,
        data: Any,
    ) -> None:
        known = [one.job for one in self.core]
        after = data.draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
        self.number += 1
        rules = RestartRules(policy, None if policy is Restart.NEVER else restarts)
        job = f"n{self.number}"
        asked = Submission(
            self.now_s, job, user, job, priority, tuple(after), restart=rules, timeout_s=timeout_s
        )
        try:
            notebook = self.core.admit(asked)
        except IllegalEvent:
            assert any(self.core.get(one).state in ("FAILED", "CANCELLED") for one in after)  # type: ignore[union-attr]
            return
        self.database[job] = notebook
        self.perform(self.core.handle(NotebookAccepted(self.now_s, notebook)))

    @precondition(lambda self: self.runners)
    @rule(outcome=st.sampled_from(list(AttemptOutcome)), data=st.data())
    def runner_ends(self, outcome: AttemptOutcome, data: Any) -> None:
        job = data.draw(st.sampled_from(sorted(self.runners)))
        attempt = self.runners.pop(job)
        self.perform(self.core.handle(NotebookEnded(self.now_s, job, attempt, outcome, "so")))

    @precondition(lambda self: len(self.core))
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        job = data.draw(st.sampled_from([one.job for one in self.core]))
        before = self.database[job]
        try:
            commands = self.core.handle(CancelAsked(self.now_s, job, "by eve"))
        except IllegalEvent:
            assert before.over
            return
        self.perform(commands)
        assert self.database[job].state is NotebookState.CANCELLED or job in self.runners

    @rule(seconds=st.floats(0, 400))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        due_s = self.core.wake_at_s()
        commands = self.core.handle(TimePassed(self.now_s))
        if due_s is not None and due_s <= self.now_s:
            assert commands
        self.perform(commands)

    @rule(
        outcomes=st.lists(
            st.sampled_from((None, AttemptOutcome.DONE, AttemptOutcome.FAILED)),
            min_size=SLOTS,
            max_size=SLOTS,
        )
    )
    def server_dies(self, outcomes: list[AttemptOutcome | None]) -> None:
        """Kill the server; some runners ended before, and left their outcome."""
        ended = [
            NotebookEnded(self.now_s, job, attempt, outcome, "so")
            for (job, attempt), outcome in zip(sorted(self.runners.items()), outcomes, strict=False)
            if outcome is not None
        ]
        self.runners.clear()
        found = [
            msgspec.json.decode(msgspec.json.encode(one), type=BatchNotebook)
            for one in self.database.values()
        ]
        self.core = Notebooks(SLOTS)
        self.perform(self.core.handle(ServerStarted(self.now_s, tuple(found), tuple(ended))))

    @invariant()
    def the_database_knows_all_that_the_core_knows(self) -> None:
        strip = {"cell": 0, "cells": 0}
        for one in self.core:
            stored = self.database[one.job]
            assert msgspec.structs.replace(stored, **strip) == msgspec.structs.replace(one, **strip)
        assert len(self.core) == len(self.database)

    @invariant()
    def running_notebooks_have_their_runner_and_no_slot_is_idle(self) -> None:
        running = {one.job: one.attempts for one in self.core.running}
        assert running == self.runners
        assert len(running) <= SLOTS
        assert len(running) == SLOTS or not self.core.queue()

    @invariant()
    def no_notebook_starts_more_often_than_allowed(self) -> None:
        for job, count in self.starts.items():
            assert count == self.database[job].attempts <= self.database[job].restart.attempts_max

    @invariant()
    def pending_dependencies_have_not_ended(self) -> None:
        for one in self.core:
            if not one.over:
                assert all(not self.database[name].over for name in one.waits_for)

    @invariant()
    def every_notebook_is_explained(self) -> None:
        explainer = NotebookExplainer(self.core, self.now_s, str)
        for one in self.core:
            sentence = explainer.sentence(one.job)
            assert sentence.endswith(".")
            assert "None" not in sentence


BatchMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBatchMachine = BatchMachine.TestCase
