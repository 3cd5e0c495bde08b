"""Batch notebooks on the page Jobs: which rows, and what they say."""

from __future__ import annotations

from djinn_lab.dashboard.jobs.tables import NOTEBOOK_COLUMNS, NOTEBOOKS_MAX, listed_notebooks, notebook_row
from djinn_lab.protocol.rest.notebooks import NotebookView


def test_notebooks_waiting_or_running_are_listed_before_ended_ones() -> None:
    over = [NotebookView(f"nb{number}", state="DONE") for number in range(30)]
    rows = listed_notebooks(
        [*over, NotebookView("nbwaits", state="QUEUED"), NotebookView("nbbacks", state="BACKING_OFF")]
    )
    assert [one.job for one in rows[:3]] == ["nbwaits", "nbbacks", "nb0"]
    assert len(rows) == NOTEBOOKS_MAX


def test_running_notebooks_are_listed_before_waiting_ones() -> None:
    """They are older, and the pool lists the newest first."""
    wait = [NotebookView(f"nb{number}", state="QUEUED") for number in range(30)]
    rows = listed_notebooks([*wait, NotebookView("nbruns", state="RUNNING")])
    assert [one.job for one in rows[:2]] == ["nbruns", "nb0"]


def test_a_row_says_how_far_it_is_and_how_often_it_was_tried() -> None:
    one = NotebookView(
        "nb1",
        user="ann",
        name="train",
        priority="HIGH",
        state="BACKING_OFF",
        reason="Backing off until 14:03:10 after attempt 2 of 5: no luck.",
        cell=3,
        cells=7,
        attempts=2,
        attempts_max=5,
        submitted_at=1000.0,
        started_at=1010.0,
        finished_at=1085.0,
    )
    row = notebook_row(one, now=2000.0)
    assert set(row) - {"id"} == {column["key"] for column in NOTEBOOK_COLUMNS}
    assert row["state"]["text"] == "backing off"
    assert row["cells"] == {"done": 3, "total": 7, "text": "3 / 7"}
    assert (row["attempt"], row["took"]["text"], row["reason"]) == ("2 of 5", "1 min 15 s", one.reason)


def test_a_notebook_that_never_started_has_no_figures() -> None:
    row = notebook_row(NotebookView("nb1", state="QUEUED", attempts_max=1), now=5.0)
    assert (row["cells"], row["attempt"], row["took"]) == (None, None, None)


def test_notebook_waiting_after_a_dead_pool_shows_no_run_time() -> None:
    """How long it ran is unknown."""
    waits = NotebookView("nb1", state="QUEUED", attempts=1, started_at=10.0)
    assert notebook_row(waits, now=500.0)["took"] is None
    assert notebook_row(NotebookView("nb1", state="RUNNING", started_at=10.0), now=15.0)["took"]["sort"] == 5
