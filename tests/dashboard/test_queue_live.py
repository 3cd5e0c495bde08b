"""The page about the queue while a live pool has more cells than devices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from device_kind import KIND
from real_pool import PoolUnderTest, wait_for

from djinn_lab.errors import PoolError
from djinn_lab.jobs.fairness import Limits

pytestmark = [pytest.mark.browser, pytest.mark.processes]


@pytest.fixture(scope="module")
def pool(directory: Path) -> Iterator[PoolUnderTest]:
    (directory / "run").mkdir()
    with PoolUnderTest(directory / "run", f"{KIND}:1", memory_bytes=2**29) as running:
        yield running


class Crowd:
    """Users with a long cell each, on one device."""

    def __init__(self, pool: PoolUnderTest, stack: ExitStack) -> None:
        import torch

        self._torch = torch
        self._pool = pool
        self._threads: list[threading.Thread] = []
        self.sessions = {user: stack.enter_context(pool.session(user)) for user in ("ann", "bob", "cy")}
        stack.callback(self.leave)

    def run(self, user: str, state: str, priority: str = "NORMAL") -> str:
        """The id of the user's cell, once it is in this state."""
        session = self.sessions[user]

        def cell() -> None:
            from djinn_lab.errors import CellCancelled

            try:
                with session.capture(priority=priority):
                    value = self._torch.ones(1200, 1200)
                    for _ in range(450):
                        value = (value @ value) / 1200
            except CellCancelled:
                return

        thread = threading.Thread(target=cell)
        self._threads.append(thread)
        thread.start()
        return str(self._pool.wait_for_job(user=user, state=state).job)

    def leave(self) -> None:
        for job in self._pool.rest.jobs(limit=50):
            if job.finished_at is None:
                self._pool.rest.cancel(job.job)
        while self._threads:
            self._threads.pop().join(30)


@pytest.fixture(scope="module")
def notebooks(pool: PoolUnderTest) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(pool, stack)


@pytest.fixture
def crowd(notebooks: Crowd) -> Iterator[Crowd]:
    yield notebooks
    notebooks.leave()


def test_queue_page_shows_waiting_cells_with_reason_and_advice(
    pool: PoolUnderTest, crowd: Crowd, dashboard_url: str, visitor: Any
) -> None:
    crowd.run("ann", "RUNNING", "CRITICAL")
    bob = crowd.run("bob", "QUEUED")
    cy = crowd.run("cy", "QUEUED")
    page = visitor.open(f"{dashboard_url}?page=queue")
    table = page.get_by_role("grid", name="Pending cells")
    row = table.get_by_role("row").filter(has_text=bob[:8])
    row.wait_for()
    assert "next" in row.inner_text()
    behind = table.get_by_role("row").filter(has_text=cy[:8])
    assert "1 job is expected to start" in behind.inner_text()
    running = page.get_by_role("grid", name="Running cells")
    running.get_by_role("row").filter(has_text="ann").wait_for()
    accounts = page.get_by_role("grid", name="Accounts")
    accounts.get_by_role("row").filter(has_text="bob").wait_for()

    row.click()
    page.get_by_role("heading", name=f"Why bob’s cell {bob[:8]} waits").wait_for()
    page.get_by_label("Priority").select_option("CRITICAL")
    page.get_by_role("button", name="When would it start?").click()
    page.get_by_text("it would start in").wait_for()

    pool.rest.cancel(bob)
    page.get_by_text("This cell is not pending any more.").wait_for()
    wait_for(lambda: table.get_by_role("row").filter(has_text=bob[:8]).count() == 0)


@pytest.mark.parametrize("shown", ["page=jobs", "page=overview"])
def test_rows_name_the_notebook_and_mine_leaves_out_those_of_others(
    pool: PoolUnderTest, crowd: Crowd, dashboard_url: str, visitor: Any, shown: str
) -> None:
    crowd.run("ann", "RUNNING")
    with pool.session() as own, pytest.raises(PoolError), own.capture("refused"):
        import torch

        torch.zeros(2**40).sum().item()
    page = visitor.open(f"{dashboard_url}?{shown}&show=all")
    table = page.get_by_role("grid", name="Jobs" if "jobs" in shown else "Cells")
    named = page.get_by_role("gridcell", name="ann", exact=True)  # cells of others wait for ann's
    of_ann = table.get_by_role("row").filter(has=named)
    of_ann.first.wait_for()
    headings = table.get_by_role("columnheader").all_inner_texts()
    assert of_ann.first.get_by_role("gridcell").nth(headings.index("Notebook")).inner_text() == "ann"
    page.get_by_role("button", name="Mine").click()
    wait_for(lambda: of_ann.count() == 0)
    table.get_by_role("row").filter(has_text="refused").first.wait_for()
    page.wait_for_function("location.search.includes('whose=mine')")


def test_an_idle_pool_has_an_empty_queue_and_says_so(dashboard_url: str, visitor: Any) -> None:
    page = visitor.open(f"{dashboard_url}?page=queue")
    page.get_by_text("No cell is pending").wait_for()
    page.get_by_role("heading", name="Fairness").wait_for()


def test_what_is_reserved_is_shown_while_it_lasts(
    pool: PoolUnderTest, dashboard_url: str, visitor: Any
) -> None:
    page = visitor.open(f"{dashboard_url}?page=queue")
    page.get_by_role("heading", name="Fairness").wait_for()
    reserved = page.get_by_role("grid", name="Reserved devices")
    assert reserved.count() == 0
    pool.rest.reserve("course", [f"{KIND}:0"], ["teaching"], ends_at=time.time() + 600)
    row = reserved.get_by_role("row").filter(has_text="course")
    row.wait_for()
    assert "teaching" in row.inner_text()
    assert "has begun" in row.inner_text()
    pool.rest.end_reservation("course")
    row.wait_for(state="hidden")


def test_a_projects_guarantee_and_the_classes_by_it_are_shown(
    pool: PoolUnderTest, crowd: Crowd, dashboard_url: str, visitor: Any
) -> None:
    pool.rest.create_user("dora", account="vision")
    pool.rest.set_targets("vision", limits=Limits(devices_guaranteed=1))
    try:
        ann = crowd.run("ann", "RUNNING")
        page = visitor.open(f"{dashboard_url}?page=queue")
        accounts = page.get_by_role("grid", name="Accounts")
        row = accounts.get_by_role("row").filter(has_text="vision/…")
        row.filter(has_text="guaranteed devices: 1").wait_for()
        running = page.get_by_role("grid", name="Running cells")
        running.get_by_role("row").filter(has_text="normal, burstable").wait_for()
        page = visitor.open(f"{dashboard_url}?page=jobs&job={ann}")
        page.get_by_text("normal priority, class burstable").wait_for()
    finally:
        pool.rest.set_targets("vision", limits=Limits(devices_guaranteed=None))


def test_the_jobs_page_has_the_history_and_every_decision(
    pool: PoolUnderTest, crowd: Crowd, dashboard_url: str, visitor: Any
) -> None:
    ann = crowd.run("ann", "RUNNING")

    def preempted() -> bool:
        """Ask for a preemption; between two parts of the cell the request preempts nothing."""
        with suppress(PoolError):  # it is between two parts just now
            pool.rest.preempt(ann)
        return any(line.event == "SegmentPreempted" for line in pool.rest.job(ann).events)

    wait_for(preempted)
    pool.wait_for_job(job=ann, state="RUNNING")
    page = visitor.open(f"{dashboard_url}?page=jobs&job={ann}")
    page.get_by_role("heading", name=f"Why is {ann[:8]} running?").wait_for()
    trace = page.get_by_role("grid", name="Decision trace")
    trace.get_by_text("preempted between two ops").first.wait_for()
    pool.rest.cancel(ann)
    page.get_by_role("heading", name=f"Why is {ann[:8]} cancelled?").wait_for()
    trace.get_by_text("cancellation requested").wait_for()
    page.get_by_label("User, cell, notebook or job").fill("unknown user")
    page.get_by_label("User, cell, notebook or job").press("Enter")
    page.get_by_text("No job matches").wait_for()
