"""The core of batch notebooks: slots, what follows an attempt, what a dead server leaves."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.jobs import IllegalEvent
from djinn_lab.jobs.batch import (
    AttemptOutcome,
    BatchNotebook,
    CancelAsked,
    CellJobEnded,
    CheckpointAnnounced,
    Command,
    ForgetNotebook,
    NotebookAccepted,
    NotebookEnded,
    NotebookExplainer,
    NotebookProgressed,
    Notebooks,
    Restart,
    RestartRules,
    SaveNotebook,
    ServerStarted,
    StartNotebook,
    StopNotebook,
    Submission,
    TimePassed,
)
from djinn_lab.jobs.batch.notebooks import OVER_KEPT_MAX

ON_FAILURE = RestartRules(Restart.ON_FAILURE, restarts_max=2, backoff_s=10)
ALWAYS = RestartRules(Restart.ALWAYS, backoff_s=10)


def submit(core: Notebooks, job: str, at_s: float = 0.0, user: str = "ann", **asked: object) -> list[Command]:
    submission = Submission(at_s, job, user, job, **asked)  # type: ignore[arg-type]
    return core.handle(NotebookAccepted(at_s, core.admit(submission)))


def end(
    core: Notebooks, job: str, at_s: float, outcome: AttemptOutcome = AttemptOutcome.DONE, message: str = ""
) -> list[Command]:
    return core.handle(NotebookEnded(at_s, job, found(core, job).attempts, outcome, message))


def fail(core: Notebooks, job: str, at_s: float) -> list[Command]:
    return end(core, job, at_s, AttemptOutcome.FAILED, "ValueError in cell 3 of 7: no luck")


def found(core: Notebooks, job: str) -> BatchNotebook:
    notebook = core.get(job)
    assert notebook is not None
    return notebook


def states(core: Notebooks) -> dict[str, str]:
    return {one.job: one.state.value for one in core}


def started(commands: list[Command]) -> list[str]:
    return [one.job for one in commands if isinstance(one, StartNotebook)]


def why(core: Notebooks, job: str, now_s: float = 0.0) -> str:
    return NotebookExplainer(core, now_s, lambda at_s: f"{at_s:.0f} o'clock").sentence(job)


def stored(core: Notebooks) -> tuple[BatchNotebook, ...]:
    """Encode notebooks as the database keeps them, and decode them again."""
    return tuple(msgspec.json.decode(msgspec.json.encode(one), type=BatchNotebook) for one in core)


def test_slots_go_by_priority_then_in_turn_between_users_then_by_arrival() -> None:
    core = Notebooks(slots=1)
    submit(core, "first")
    for job, user, priority in (
        ("ann2", "ann", "NORMAL"),
        ("ann3", "ann", "NORMAL"),
        ("ben1", "ben", "NORMAL"),
        ("ben2", "ben", "NORMAL"),
        ("low", "eve", "LOW"),
        ("high", "ann", "HIGH"),
    ):
        assert started(submit(core, job, user=user, priority=priority)) == []
    assert [one.job for one in core.queue()[:2]] == ["high", "ben1"]
    order = []
    running = "first"
    for at_s in range(1, 7):
        (running,) = started(end(core, running, at_s))
        order.append(running)
    assert order == ["high", "ben1", "ann2", "ben2", "ann3", "low"]


def test_one_user_cannot_keep_the_others_from_the_next_slot() -> None:
    core = Notebooks(slots=2)
    for number in range(50):
        submit(core, f"ann{number}")
    submit(core, "ben", user="ben")
    assert started(end(core, "ann0", 1.0)) == ["ben"]


def test_a_start_is_stored_before_it_is_performed() -> None:
    commands = submit(Notebooks(slots=1), "one")
    kinds = [type(command) for command in commands]
    assert kinds.index(StartNotebook) == len(kinds) - 1
    saved = [one.notebook for one in commands if isinstance(one, SaveNotebook)]
    assert (saved[-1].state, saved[-1].attempts) == ("RUNNING", 1)


def test_a_failed_attempt_ends_a_notebook_that_is_never_run_again() -> None:
    core = Notebooks(slots=1)
    submit(core, "one")
    core.handle(NotebookProgressed(1.0, "one", 1, 3, 7))
    fail(core, "one", 2.0)
    assert why(core, "one") == "Failed: ValueError in cell 3 of 7: no luck."
    assert (found(core, "one").cell, found(core, "one").finished_at_s) == (3, 2.0)


def test_restarts_back_off_longer_each_time_and_end() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ON_FAILURE)
    fail(core, "one", 1.0)
    assert why(core, "one") == (
        "Backing off until 11 o'clock after attempt 1 of 3: ValueError in cell 3 of 7: no luck."
    )
    assert core.wake_at_s() == 11.0
    assert started(core.handle(TimePassed(10.9))) == []
    assert started(core.handle(TimePassed(11.0))) == ["one"]
    fail(core, "one", 12.0)
    assert core.wake_at_s() == 32.0
    core.handle(TimePassed(32.0))
    fail(core, "one", 33.0)
    assert why(core, "one") == "Failed: ValueError in cell 3 of 7: no luck (attempt 3 of 3)."


def test_a_success_after_a_failure_is_done() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ON_FAILURE)
    fail(core, "one", 1.0)
    core.handle(TimePassed(11.0))
    core.handle(NotebookProgressed(12.0, "one", 2, 7, 7))
    end(core, "one", 13.0)
    assert why(core, "one") == "Done: all 7 cells ran (attempt 2 of 3)."
    assert core.wake_at_s() is None


def test_always_runs_again_after_success_without_longer_pauses_until_it_is_cancelled() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ALWAYS)
    at_s = 0.0
    for _ in range(20):
        end(core, "one", at_s + 1)
        assert core.wake_at_s() == at_s + 11
        at_s += 11
        assert started(core.handle(TimePassed(at_s))) == ["one"]
    end(core, "one", at_s + 1)
    assert "after attempt 21: it went well" in why(core, "one")
    core.handle(CancelAsked(at_s + 2, "one", "by ann"))
    assert why(core, "one") == "Cancelled by ann."


def test_a_notebook_that_backs_off_holds_no_slot() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ON_FAILURE)
    submit(core, "two")
    assert started(fail(core, "one", 1.0)) == ["two"]


def test_a_running_notebook_that_is_cancelled_keeps_its_slot_until_its_runner_is_gone() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ALWAYS)
    submit(core, "two")
    commands = core.handle(CancelAsked(1.0, "one", "by ben"))
    assert [one for one in commands if not isinstance(one, SaveNotebook)] == [StopNotebook("one", 1)]
    assert states(core) == {"one": "RUNNING", "two": "QUEUED"}
    assert why(core, "one") == "Its kernel is being stopped: cancelled by ben."
    assert core.handle(CancelAsked(1.5, "one", "by ann")) == []
    assert started(end(core, "one", 2.0, AttemptOutcome.STOPPED)) == ["two"]
    assert why(core, "one") == "Cancelled by ben."
    with pytest.raises(IllegalEvent, match="already CANCELLED"):
        core.handle(CancelAsked(3.0, "one", "by ann"))


def test_a_notebook_that_was_through_before_it_saw_the_cancel_is_done() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ALWAYS)
    core.handle(CancelAsked(1.0, "one", "by ben"))
    end(core, "one", 2.0)
    assert states(core) == {"one": "DONE"}


def test_a_time_limit_stops_each_attempt_and_is_a_failure() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ON_FAILURE, timeout_s=60.0)
    assert core.wake_at_s() == 60.0
    assert StopNotebook("one", 1) in core.handle(TimePassed(60.0))
    assert core.wake_at_s() is None
    end(core, "one", 61.0, AttemptOutcome.STOPPED)
    assert "after attempt 1 of 3: stopped after its time limit of 1 min 0 s" in why(core, "one")
    core.handle(TimePassed(71.0))
    assert core.wake_at_s() == 131.0


def test_the_wait_for_a_slot_does_not_count_against_the_time_limit() -> None:
    core = Notebooks(slots=1)
    submit(core, "one")
    submit(core, "two", timeout_s=5.0)
    end(core, "one", 1000.0)
    assert core.wake_at_s() == 1005.0


def test_notebook_with_dependencies_starts_after_they_succeed() -> None:
    core = Notebooks(slots=3)
    submit(core, "one")
    submit(core, "two", after=("one", "cell"), cells=("cell",))
    assert why(core, "two") == "Waits for one (one, RUNNING) and cell cell to end well."
    assert core.awaited == {"cell"}
    assert started(end(core, "one", 1.0)) == []
    assert started(core.handle(CellJobEnded(2.0, "cell", True, "DONE"))) == ["two"]
    assert started(submit(core, "three", after=("one",))) == ["three"]


def test_failed_notebook_cancels_all_its_dependents() -> None:
    core = Notebooks(slots=1)
    submit(core, "n0")
    for number in range(1, 900):
        submit(core, f"n{number}", after=(f"n{number - 1}",))
    fail(core, "n0", 1.0)
    assert set(states(core).values()) == {"FAILED", "CANCELLED"}
    assert why(core, "n1") == "N0, which it depends on, is FAILED."
    assert why(core, "n899") == "N898, which it depends on, is CANCELLED."


def test_a_notebook_that_will_run_again_has_not_failed_yet() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ON_FAILURE)
    submit(core, "two", after=("one",))
    fail(core, "one", 1.0)
    assert states(core)["two"] == "QUEUED"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"priority": "URGENT"}, "'URGENT' is none of CRITICAL"),
        ({"after": ("missing",)}, "missing, which is unknown"),
        ({"after": ("failed",)}, "failed, which it depends on, is FAILED"),
        ({"timeout_s": 0.0}, "a timeout of 0.0 s"),
        ({"deadline_s": math.inf}, "a deadline of inf s"),
        ({"restart": RestartRules(Restart.ALWAYS, restarts_max=-1)}, "-1 restarts"),
        (
            {"restart": RestartRules(Restart.NEVER, restarts_max=3)},
            "3 restarts with the restart policy never",
        ),
        ({"restart": RestartRules(Restart.ALWAYS, backoff_s=math.nan)}, "a backoff of nan s"),
    ],
)
def test_invalid_notebook_submission_is_refused_with_the_reason(
    asked: dict[str, object], reason: str
) -> None:
    core = Notebooks(slots=1)
    submit(core, "failed")
    fail(core, "failed", 1.0)
    before = stored(core)
    with pytest.raises(IllegalEvent, match=reason):
        submit(core, "new", **asked)
    assert stored(core) == before


def test_why_a_notebook_waits_has_numbers() -> None:
    core = Notebooks(slots=2)
    for job in ("a", "b", "c", "d"):
        submit(core, job)
    core.handle(NotebookProgressed(1.0, "a", 1, 3, 7))
    assert why(core, "d") == (
        "2nd of 2 waiting notebooks; "
        "both slots are taken by a (ann, cell 3 of 7) and b (ann, starting its kernel)."
    )
    assert why(core, "a", 61.0) == "Running for 1 min 1 s: cell 3 of 7."


def test_a_notebook_that_ran_for_long_is_kept_when_it_has_just_ended() -> None:
    """However many later notebooks have ended since."""
    core = Notebooks(slots=2)
    submit(core, "overnight")
    for number in range(OVER_KEPT_MAX):
        submit(core, f"short{number}", float(number))
        end(core, f"short{number}", number + 0.5)
    end(core, "overnight", 1000.0)
    commands = submit(core, "next", 1001.0)
    assert [one.job for one in commands if isinstance(one, ForgetNotebook)] == ["short0"]
    assert found(core, "overnight").state == "DONE"


def test_checkpoints_of_a_cell_are_remembered_while_a_notebook_waits_for_it() -> None:
    core = Notebooks(slots=1)
    submit(core, "waits", after=("cell:checkpoint=last",), cells=("cell",))
    core.handle(CheckpointAnnounced(1.0, "cell", "first"))
    assert "1 so far ('first')" in why(core, "waits")
    core.handle(CancelAsked(2.0, "waits", "by ann"))
    assert core.checkpoints("cell") == ()


def restarted(core: Notebooks, at_s: float, *ended: NotebookEnded) -> tuple[Notebooks, list[Command]]:
    successor = Notebooks(core.slots)
    return successor, successor.handle(ServerStarted(at_s, stored(core), ended))


def test_a_dead_servers_notebooks_follow_their_policies() -> None:
    core = Notebooks(slots=3)
    submit(core, "never")
    submit(core, "again", restart=ON_FAILURE)
    submit(core, "cancelled", restart=ALWAYS)
    core.handle(CancelAsked(1.0, "cancelled", "by ann"))
    submit(core, "waits")
    submit(core, "after", after=("never",))
    successor, commands = restarted(core, 50.0)
    assert states(successor) == {
        "never": "FAILED",
        "again": "RUNNING",
        "cancelled": "CANCELLED",
        "waits": "RUNNING",
        "after": "CANCELLED",
    }
    assert started(commands) == ["again", "waits"]
    assert found(successor, "again").attempts == 2
    assert why(successor, "never") == (
        "Failed: the pool server ended while it ran; it is not run again because its restart policy is never."
    )


def test_an_attempt_that_ended_while_the_server_was_dead_counts() -> None:
    core = Notebooks(slots=2)
    submit(core, "done")
    submit(core, "failed", restart=ON_FAILURE)
    successor, commands = restarted(
        core,
        50.0,
        NotebookEnded(50.0, "done", 1, AttemptOutcome.DONE, cell=7, cells=7),
        NotebookEnded(50.0, "failed", 1, AttemptOutcome.FAILED, "ValueError"),
    )
    assert states(successor) == {"done": "DONE", "failed": "BACKING_OFF"}
    assert why(successor, "done") == "Done: all 7 cells ran."
    assert started(commands) == []


def test_a_notebook_that_kills_the_server_each_time_ends() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ON_FAILURE)
    for _ in range(3):
        core, _ = restarted(core, 50.0)
    assert states(core) == {"one": "FAILED"}
    assert "started 3 times, which is the most" in why(core, "one")


def test_restart_delay_continues_after_a_server_restart() -> None:
    core = Notebooks(slots=1)
    submit(core, "one", restart=ON_FAILURE)
    fail(core, "one", 1.0)
    successor, commands = restarted(core, 5.0)
    assert started(commands) == []
    assert successor.wake_at_s() == 11.0


@given(
    st.sampled_from(list(Restart)),
    st.none() | st.integers(0, 20),
    st.floats(0, 86400),
    st.integers(0, 200),
)
def test_pauses_grow_and_are_bounded(
    policy: Restart, restarts_max: int | None, backoff_s: float, failures: int
) -> None:
    rules = RestartRules(policy, restarts_max, backoff_s)
    assert backoff_s <= rules.delay_s(failures) <= rules.delay_s(failures + 1) <= max(300.0, backoff_s)
    assert rules.again(False, 10**9) == (policy is Restart.ALWAYS and restarts_max is None)
