"""Notebooks that ran before are predicted, and refused where they cannot fit."""

from __future__ import annotations

import msgspec
import pytest

from djinn_lab.jobs import IllegalEvent
from djinn_lab.jobs.batch import (
    AttemptOutcome,
    BatchNotebook,
    NotebookAccepted,
    NotebookEnded,
    NotebookExplainer,
    Notebooks,
    ServerStarted,
    Submission,
)
from djinn_lab.jobs.resources import ResourceUse

LARGE = ResourceUse(30.0, 3 * 2**30, "In [14]")


def run(
    core: Notebooks, job: str, outcome: AttemptOutcome, use: ResourceUse, content: str = "same"
) -> BatchNotebook:
    notebook = core.admit(Submission(0.0, job, "ann", job, content=content))
    core.handle(NotebookAccepted(0.0, notebook))
    core.handle(NotebookEnded(1.0, job, 1, outcome, use=use))
    return notebook


def test_notebook_that_ran_out_of_memory_is_refused_unless_more_is_asked_for() -> None:
    core = Notebooks(slots=1)
    assert run(core, "nb1", AttemptOutcome.FAILED, LARGE).predicted is None
    again = Submission(2.0, "nb2", "bob", "again", content="same", memory_bytes=2 * 2**30)
    with pytest.raises(IllegalEvent, match=r"\(nb1\) In \[14\] needed 3.0 GiB, and no device .* 2.0 GiB"):
        core.admit(again)
    core.admit(msgspec.structs.replace(again, memory_bytes=3 * 2**30))
    core.admit(msgspec.structs.replace(again, memory_bytes=None))
    core.admit(msgspec.structs.replace(again, content="other"))


def test_seconds_are_those_of_runs_that_went_well_and_a_new_server_knows_them() -> None:
    core = Notebooks(slots=1)
    run(core, "nb1", AttemptOutcome.DONE, ResourceUse(10.0, 100, "In [1]"))
    run(core, "nb2", AttemptOutcome.FAILED, ResourceUse(1.0, 300, "In [2]"))
    run(core, "nb3", AttemptOutcome.DONE, ResourceUse(20.0, 200, "In [3]"))
    stored = tuple(msgspec.json.decode(msgspec.json.encode(one), type=BatchNotebook) for one in core)
    later = Notebooks(slots=1)
    later.handle(ServerStarted(5.0, stored))
    for known in (core, later):
        notebook = known.admit(Submission(6.0, "nb4", "ann", "four", content="same"))
        assert notebook.predicted is not None
        assert (notebook.predicted.device_s, notebook.predicted.peak_bytes) == (15.0, 300)
        assert (notebook.predicted.runs, notebook.predicted.where) == (3, "In [2]")


def test_waiting_notebook_shows_its_forecast_and_the_error_of_earlier_forecasts() -> None:
    core = Notebooks(slots=1)
    for number in range(6):
        run(core, f"nb{number}", AttemptOutcome.DONE, ResourceUse(10.0, 2**20, "In [1]"))
    blocker = core.admit(Submission(7.0, "nb7", "ann", "seven"))
    core.handle(NotebookAccepted(7.0, blocker))
    waiting = core.admit(Submission(8.0, "nb8", "ann", "eight", content="same"))
    core.handle(NotebookAccepted(8.0, waiting))
    sentence = NotebookExplainer(core, 9.0, str).sentence("nb8")
    assert (
        "Predicted from 5 earlier runs: 10.0 s on devices and at most 1.0 MiB at once (in In [1])."
        in sentence
    )
    assert "off by 0% in seconds and 0% in bytes, in the median of the last 5" in sentence
