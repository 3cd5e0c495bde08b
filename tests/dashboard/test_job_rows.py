"""What the history of cells lists and says of one, and the chart of use beside it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from page_kit import WhileTheTestWaits, wait_until

from djinn_lab.cli.jobs import HEADINGS, _row
from djinn_lab.dashboard.admin.jobs import unfinished_jobs
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.dashboard.jobs.page import JobsPage, history_row
from djinn_lab.dashboard.jobs.tables import job_row
from djinn_lab.dashboard.queueing.fairness_chart import SHOWN_S_MIN, FairnessChart
from djinn_lab.dashboard.queueing.history import RecentUse
from djinn_lab.dashboard.queueing.tables import running_rows
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.widgets.theme import LIGHT
from djinn_lab.errors import PoolError
from djinn_lab.protocol.rest.jobs import JobPage, JobView, matches_text
from djinn_lab.protocol.rest.queue import QueueView, RunningJob
from djinn_lab.protocol.rest.status import PoolStatus


@pytest.mark.parametrize(("now", "text"), [(100.2, "< 1 s"), (107.9, "7 s"), (175.0, "1 min 15 s")])
def test_a_cell_that_waits_says_how_long_it_has_so_far(now: float, text: str) -> None:
    row = history_row(JobView("a", state="QUEUED", submitted_at=100.0), now, {})
    assert row["waited"]["text"] == text


def test_a_cell_that_runs_or_ran_says_how_long_it_waited() -> None:
    stages = {"queued": 2.0, "restoring": 0.5, "run": 9.0}
    done = JobView("a", state="DONE", submitted_at=100.0, started_at=102.5, finished_at=111.5, stages=stages)
    assert history_row(done, 200.0, {})["waited"]["text"] == "2.5 s"
    runs = JobView("a", state="RUNNING", submitted_at=100.0, started_at=102.5)
    assert history_row(runs, 200.0, {})["waited"]["text"] == "2.5 s"


def test_run_time_is_what_devices_ran_and_not_what_it_waited_preempted() -> None:
    """It ran for 20 s, was preempted for a minute, and ran for another 5 s."""
    waits = JobView("a", state="PREEMPTED", submitted_at=90.0, started_at=100.0, ran_s=20.0)
    runs = replace(waits, state="RUNNING", running_since=180.0)
    done = replace(runs, state="DONE", ran_s=25.0, running_since=None, finished_at=185.0)
    never = JobView("a", state="QUEUED", submitted_at=90.0, ran_s=0.0)
    assert [job_row(job, 184.5, {})["took"] for job in (waits, runs, done, never)] == [
        {"text": "20 s", "sort": 20.0},
        {"text": "24 s", "sort": 24.0},
        {"text": "25.0 s", "sort": 25.0},
        None,
    ]
    assert [_row(job, 184.5)[HEADINGS.index("ran")] for job in (waits, runs, done, never)] == [
        "20.0 s",
        "24.5 s",
        "25.0 s",
        "",
    ]


def test_admin_and_queue_pages_have_the_same_run_time() -> None:
    cell = RunningJob("a", device="cpu:0", since=180.0, ran_s=20.0)
    queue = QueueView(now=184.0, running=(cell,))
    (job,) = unfinished_jobs((), queue)
    assert job_row(job, queue.now, {})["took"]["text"] == "24 s"
    assert running_rows(queue, {})[0]["since"]["text"] == "24 s"


def test_the_day_is_shown_of_a_cell_of_another_day() -> None:
    day_s = 86_400.0
    texts = [
        history_row(JobView("a", submitted_at=9 * day_s), now, {})["submitted"]["text"]
        for now in (9 * day_s, 11 * day_s)
    ]
    assert texts[1].endswith(f" {texts[0]}")
    assert "Jan" in texts[1]


def test_the_chart_of_use_spans_a_minute_from_the_first_look_on() -> None:
    chart = FairnessChart(LIGHT)
    for ends_at in (1000.0, 1001.0, 1100.0):
        chart.update([RecentUse(at, 0, {"ann": 1.0}, 1.0) for at in (1000.0, ends_at)])
        spans_s = (chart.use_figure.x_range.end - chart.use_figure.x_range.start) / 1e3
        assert spans_s == max(SHOWN_S_MIN, ends_at - 1000.0)
        assert chart.use_figure.x_range.end == ends_at * 1e3


class ManyJobs:
    """A pool with a cell that runs and 450 that have ended, newest first; every fifth is Ann's."""

    def __init__(self) -> None:
        self.runs = JobView("runs", user="bob", cell="now", state="RUNNING", submitted_at=0.5)
        self.ended = [
            JobView(
                f"{number:03d}",
                user="bob" if number % 5 else "ann",
                cell=f"In [{number}]",
                state="DONE",
                submitted_at=1000.0 - number,
            )
            for number in range(450)
        ]

    def job_page(
        self, state: str | None, user: str | None, find: str, before: str | None, limit: int = 200
    ) -> JobPage:
        names = [job.job for job in self.ended]
        if before is not None and before not in names:
            raise PoolError(f"There is no job {before!r}.")
        found = [one for one in self.ended if user in (None, one.user) and matches_text(one, find, {})]
        behind = [one for one in found if before is None or one.job > before]
        live = (self.runs,) if user in (None, "bob") and not find and state is None else ()
        return JobPage(tuple(behind[:limit]), len(found), len(found) - len(behind), live, len(live))


def test_all_cells_of_the_pool_are_looked_through_and_older_ones_listed() -> None:
    pool: Any = ManyJobs()
    hub = Hub(lambda: pool)
    board = Board(hub, Route(), WhileTheTestWaits(hub.executor), LIGHT)
    status = PoolStatus("pool", "1", started_at=0.0, uptime_s=1000.0, now=1001.0, user="ann", ready=True)
    snapshot = Snapshot(1, "live", status=status, jobs=tuple(pool.ended[:200]))
    page = JobsPage(board)

    def listed() -> list[object]:
        return [row["id"] for row in page.jobs.rows]

    def turn(button: Any) -> None:
        button.clicks += 1
        page.update(snapshot)

    page.update(snapshot)
    wait_until(lambda: not page.listing.older.disabled)
    assert listed() == ["runs", *(one.job for one in pool.ended[:200])]
    assert "451 cells; the newest 201 are listed." in page._heading.object
    turn(page.listing.older)
    wait_until(lambda: listed() == ["runs", *(one.job for one in pool.ended[200:400])])
    assert "1 run or wait; of 450 that have ended 201 to 400 are listed" in page._heading.object
    turn(page.listing.older)
    wait_until(lambda: listed() == ["runs", *(one.job for one in pool.ended[400:])])
    assert page.listing.older.disabled
    turn(page.listing.newer)
    turn(page.listing.newer)
    assert listed()[1] == "000"
    assert page.listing.newer.disabled
    page.search.value = "in [449]"
    wait_until(lambda: listed() == ["449"])
    assert "1 cell matches" in page._heading.object
    page.search.value = ""
    page.whose.value = True
    wait_until(lambda: listed() == [one.job for one in pool.ended if one.user == "ann"])
    board.route.update(before="unknown")
    page.update(snapshot)
    wait_until(lambda: "There is no job" in page._problem.object)
    page.search.value = "x" * 201
    assert "at most 200 characters" in page._problem.object
    assert page.search.value == "x" * 201
    hub.stop()
