"""What a batch notebook's kernel gives its cells as defaults."""

from __future__ import annotations

import time

import pytest

from djinn_lab.config import default_profile
from djinn_lab.errors import OptionError
from djinn_lab.magics.notebook import Notebook, within_deadline
from djinn_lab.magics.options import CellOptions, default_options, parse_options


def options(line: str) -> CellOptions:
    return parse_options(line, "%%djinn", default_options(default_profile()))


def test_a_cell_without_a_deadline_has_what_is_left_of_its_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    own = options("--deadline 5min")
    monkeypatch.setenv("DJINN_DEADLINE", str(time.time() + 100))
    assert within_deadline(own) == own
    shared = within_deadline(options("")).terms.deadline_s
    assert shared is not None
    assert 0 < shared <= 100
    monkeypatch.setenv("DJINN_DEADLINE", "1000")
    late = within_deadline(options("")).terms
    assert late.deadline_s is not None
    assert late.problem() is None, "a deadline that has passed is no reason to refuse the cell"


def test_options_of_the_environment_are_defaults_that_a_cell_may_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DJINN_CELL_OPTIONS", "--priority LOW --progress-after=-1")
    notebook = Notebook(None, every_cell=True)
    assert notebook.options("", "%%djinn").priority == "LOW"
    assert notebook.options("", "%%djinn").progress_after_s == -1
    assert notebook.options("--priority high", "%%djinn").priority == "HIGH"


def test_a_default_target_is_a_cells_own_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    given = "--priority=LOW '--target=gpu=h200, team=vision' --tolerate=vision"
    monkeypatch.setenv("DJINN_CELL_OPTIONS", given)
    notebook = Notebook(None, every_cell=True)

    def where(line: str) -> tuple[str | None, tuple[str, ...]]:
        terms = notebook.options(line, "%%djinn").terms
        return terms.target, terms.tolerates

    for line in ("", "--timeout 5s", "-p llm_serving"):
        assert where(line) == ("gpu=h200, team=vision", ("vision",))
    assert where("--target cuda:0") == ("cuda:0", ("vision",))
    assert where("--target any --tolerate night --tolerate vision") == (None, ("vision", "night"))
    notebook.configure("--target cuda:1")
    assert where("") == ("cuda:1", ("vision",))
    notebook.configure("--target any")
    assert where("") == (None, ("vision",))
    notebook.configure("-p llm_serving")
    assert where("") == (None, ())


@pytest.mark.parametrize("line", ["--deadline -5s", "--deadline=-5s", "--quiet --timeout -5s"])
def test_negative_duration_is_refused_as_a_duration(line: str) -> None:
    with pytest.raises(OptionError, match=r"'-5s' is not a duration; it must be 0 or more"):
        options(line)
    assert options("--progress-after -1").progress_after_s == -1
