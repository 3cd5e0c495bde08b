"""A recorded pool in place of a live one: what the pages learn of a moment, and what cannot be shown."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from dashboard_serving import free_port, start_dashboard, stop
from recordings import POOL, two_cells, write_recording

from djinn_lab.cli import main
from djinn_lab.dashboard.recorded.pool import RecordedPool
from djinn_lab.dashboard.recorded.run import RecordedRun, SharedRuns, chosen_run, read_run
from djinn_lab.dashboard.recorded.shell import hub_at
from djinn_lab.errors import PoolError, UserError
from djinn_lab.pool.database.recording import read_recording
from djinn_lab.protocol.recording_file import FILE_VARIABLE


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recording(tmp_path_factory.mktemp("recorded") / "pool.sqlite3", two_cells())


@pytest.fixture(scope="module")
def run(file: Path) -> RecordedRun:
    return read_run(file)


def test_pages_learn_what_was_then(run: RecordedRun) -> None:
    hub, problem = hub_at(run, 3.0)
    shown = hub.snapshot()
    assert (shown.connection, shown.message, problem) == ("live", "", "")
    assert shown.status is not None
    assert shown.queue is not None
    assert shown.memory is not None
    [device] = shown.status.devices
    assert (shown.status.now, device.device, device.state, device.job) == (3.0, "cpu:0", "busy", "first")
    assert {job.job: (job.cell, job.state) for job in shown.jobs} == {
        "second": ("cell of bob", "QUEUED"),
        "first": ("cell of ann", "RUNNING"),
    }
    assert "behind ann" in shown.jobs[0].reason
    assert [job.job for job in shown.queue.waiting] == ["second"]
    assert [job.job for job in shown.queue.running] == ["first"]
    assert {session.user for session in shown.sessions} == {"ann", "bob"}
    assert {session.session for session in shown.memory.sessions} == {"ann", "bob"}
    assert [sample.at for sample in hub.memory_after(-1)][-1] == 3.0
    assert len(hub.memory_after(-1)) > 2
    hub.stop()


@pytest.mark.parametrize(
    ("at_s", "states"),
    [
        (0.5, {}),
        (1.5, {"first": "RUNNING"}),
        (5.5, {"first": "DONE", "second": "RUNNING"}),
        (10.0, {"first": "DONE", "second": "DONE"}),
    ],
)
def test_jobs_are_as_they_were_and_those_to_come_are_not_there(
    run: RecordedRun, at_s: float, states: dict[str, str]
) -> None:
    pool = RecordedPool(run, at_s)
    assert {job.job: job.state for job in pool.jobs()} == states
    assert all(job.finished_at is None or job.finished_at <= at_s for job in pool.jobs())


def test_jobs_of_a_moment_are_looked_through_part_by_part(run: RecordedRun) -> None:
    pool = RecordedPool(run, 5.5)
    page = pool.job_page()
    assert [job.job for job in (*page.unfinished, *page.jobs)] == ["second", "first"]
    assert (pool.job_page(find="OF ANN").matching, pool.job_page(state="UNFINISHED").matching) == (1, 1)
    late = RecordedPool(run, 10.0)
    page = late.job_page(limit=1)
    assert ([job.job for job in page.jobs], page.older) == (["second"], 1)
    page = late.job_page(limit=1, before="second")
    assert ([job.job for job in page.jobs], page.newer, page.older) == (["first"], 1, 0)
    with pytest.raises(PoolError, match="has no job"):
        pool.job_page(before="nothing")


def test_a_job_has_its_events_up_to_then_and_its_code(run: RecordedRun) -> None:
    early, late = (RecordedPool(run, at_s).job("second") for at_s in (3.0, 10.0))
    assert early.code == "the code of second"
    assert 0 < len(early.events) < len(late.events)
    assert max(event.at for event in early.events) <= 3.0
    assert "of ann" in RecordedPool(run, 3.0).why("second").sentence
    with pytest.raises(PoolError, match="no job"):
        RecordedPool(run, 1.5).job("second")


def test_what_a_recording_does_not_say_is_an_error_that_says_so(run: RecordedRun) -> None:
    pool = RecordedPool(run, 3.0)
    for ask in (pool.costs, pool.history, lambda: pool.cancel("first")):
        with pytest.raises(PoolError, match="This is the recording of a pool"):
            ask()


def test_moments_go_from_event_to_event_and_stay_within(run: RecordedRun) -> None:
    assert run.note == ""
    assert (run.within(-1.0), run.within(1e9)) == (run.begins_at, run.ends_at)
    assert run.step(run.begins_at, -1) == run.begins_at
    after = run.step(1.0, 1)
    assert 1.0 < after <= 2.0
    assert run.step(after, -1) == 1.0
    assert run.step(run.ends_at, 1) == run.ends_at


def test_a_recording_is_shown_up_to_where_an_event_is_missing(tmp_path: Path) -> None:
    simulated = two_cells()
    missing = next(one for one in simulated.records if one.at_s >= 2.0).seq
    run = read_run(write_recording(tmp_path / "gap.sqlite3", simulated, drop=missing))
    assert run.records[-1].seq == missing - 1
    assert f"up to event {missing - 1}" in run.note
    assert f"event {missing} is missing" in run.note
    assert {job.job: job.state for job in RecordedPool(run, run.ends_at).jobs()} == {"first": "RUNNING"}


def test_a_recording_is_shown_up_to_where_this_version_decides_otherwise(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "other.sqlite3", two_cells())
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text("update journal set commands = '0' where seq = 7"))
        connection.execute(sa.text("update journal set detail = '{' where seq = 9"))
    engine.dispose()
    run = read_run(path)
    assert run.records[-1].seq == 6
    assert "Event 7" in run.note
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text("update journal set detail = '{' where seq = 5"))
    engine.dispose()
    run = read_run(path)
    assert run.records[-1].seq == 4
    assert "event 5 cannot be read" in run.note


@pytest.mark.parametrize("eighths", range(1, 8))
def test_a_file_that_was_cut_off_is_shown_as_far_as_it_can_be_read_and_says_so(
    file: Path, tmp_path: Path, eighths: int
) -> None:
    cut = tmp_path / "cut.sqlite3"
    whole = file.read_bytes()
    cut.write_bytes(whole[: len(whole) * eighths // 8])
    assert said_of(cut) or read_run(cut).records == read_run(file).records


def said_of(path: Path) -> str:
    """Return what a visitor is told of a recording besides what it shows, or why it is not shown."""
    try:
        run = read_run(path)
    except UserError as error:
        return error.message
    return run.note + RecordedPool(run, run.ends_at).problem


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "no such table"), (b"notes\n" * 300, "not a database")]
)
def test_a_file_that_is_no_recording_is_named_with_what_to_give(
    tmp_path: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.bin"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_recording(path)
    assert reason in caught.value.message
    assert "other.bin" in caught.value.message
    assert "pool.sqlite3" in caught.value.advice
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", "--no-show", "--port", "0", "--file", str(path)])
    assert ended.value.code == 1
    assert reason in " ".join(capsys.readouterr().err.split())


def test_a_journal_without_its_beginning_or_any_event_is_no_recording(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "late.sqlite3"
    shutil.copy(file, path)
    assert [run.pool for run in read_recording(path).runs] == [POOL]
    engine = sa.create_engine(f"sqlite:///{path}")
    for statement, reason in (
        ("delete from journal where seq < 3", "begins with event 3"),
        ("delete from journal", "empty"),
    ):
        with engine.begin() as connection:
            connection.execute(sa.text(statement))
        with pytest.raises(UserError, match=reason):
            read_recording(path)
    engine.dispose()


def test_a_database_of_several_runs_offers_each_that_has_its_beginning(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "several.sqlite3"
    shutil.copy(file, path)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        columns = "at_s, core, event, detail, commands"
        for number, more in enumerate(("", " and seq > 4"), 1):
            connection.execute(
                sa.text(
                    f"insert into journal (seq, pool, {columns}) select seq + {1000 * number}, "
                    f"'later{number}', {columns} from journal where pool = '{POOL}'{more}"
                )
            )
    engine.dispose()
    recording = read_recording(path)
    assert [run.pool for run in recording.runs] == [POOL, "later1"]
    assert chosen_run(recording, "").pool == "later1"
    assert chosen_run(recording, POOL[:3]).pool == POOL
    assert SharedRuns().read(path, POOL)[1].note == ""


@pytest.mark.browser
@pytest.mark.processes
def test_a_recording_is_looked_at_moment_by_moment(file: Path, visitor: Any, tmp_path: Path) -> None:
    port = free_port()
    environment = {**os.environ, FILE_VARIABLE: str(file)}
    process = start_dashboard(port, environment, tmp_path / "serve.log")
    try:
        page = visitor.open(f"http://127.0.0.1:{port}/dashboard?at=3.0")
        page.wait_for_selector(f"text=Pool {POOL} at")
        page.wait_for_selector("tr:has(.pill:text-is('running')) >> text=cell of ann")
        page.click("role=tab[name='Queue']")
        page.wait_for_selector("text=1 pending cell, 1 running")
        page.click("button:has-text('Next event')")
        page.wait_for_function("!location.search.includes('at=3.0')")
        page.click("role=tab[name='Cost model']")
        page.wait_for_selector("text=The recording says nothing of this")
    finally:
        stop(process)
