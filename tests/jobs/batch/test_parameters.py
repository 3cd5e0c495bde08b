"""Parameters of notebooks: as in papermill, with mistakes refused."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.jobs.batch.parameters import declared, from_text, problem_with, with_parameters

DEFAULTS = """
%matplotlib inline
lr: float = 0.1
epochs = 10
name = "small"
quick = False
seed = None
layers, width = 2, 64
"""


def document(*sources: tuple[str, str]) -> dict[str, Any]:
    """(tag, source) of each cell."""
    cells = [
        nbformat.v4.new_code_cell(source, metadata={"tags": [tag] if tag else []}) for tag, source in sources
    ]
    return dict(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title"), *cells]))


def run(found: dict[str, Any]) -> dict[str, Any]:
    """Run the cells and return what they assign."""
    nbformat.validate(nbformat.from_dict(found))
    names: dict[str, Any] = {}
    for cell in found["cells"]:
        if cell["cell_type"] == "code":
            exec(cell["source"].replace("%matplotlib inline", ""), names)
    return names


PLAIN = document(("", "first = 1"), ("parameters", DEFAULTS), ("", "used = (lr, epochs, name)"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_parameter_value_is_found_by_later_cells(value: Any) -> None:
    assert problem_with({"seed": value}, declared(PLAIN)) is None
    assert run(with_parameters(PLAIN, {"seed": value}))["seed"] == value


def test_values_take_the_place_of_defaults_and_of_those_of_an_earlier_run() -> None:
    once = with_parameters(PLAIN, {"lr": 0.5, "name": "big"})
    assert run(once)["used"] == (0.5, 10, "big")
    assert [cell["metadata"].get("tags") for cell in once["cells"]][2:4] == [
        ["parameters"],
        ["injected-parameters"],
    ]
    again = with_parameters(once, {"epochs": 3})
    assert run(again)["used"] == (0.1, 3, "small")
    assert len(again["cells"]) == len(once["cells"])
    assert again["metadata"]["papermill"]["parameters"] == {"epochs": 3}


def test_parameters_without_a_tagged_cell_are_put_first() -> None:
    bare = document(("", "doubled = 2 * x"))
    assert declared(bare) is None
    assert problem_with({"x": 4}, None) is None
    assert run(with_parameters(bare, {"x": 4}))["doubled"] == 8


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epochs", "3", 3),
        ("lr", "1e-3", 0.001),
        ("lr", "1", 1),
        ("quick", "True", True),
        ("seed", "None", None),
        ("seed", "ann", "ann"),
        ("name", "007", "007"),
        ("width", "-5", -5),
    ],
)
def test_values_are_read_as_people_mean_them(name: str, text: str, value: Any) -> None:
    known = declared(PLAIN)
    found = from_text(text, name, known)
    assert (found, type(found)) == (value, type(value))
    assert problem_with({name: found}, known) is None


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("learning_rate", "1", "has no learning_rate; it assigns epochs, layers, lr"),
        ("lr", "fast", "'fast', and its default .* is 0.1, a number"),
        ("epochs", "2.5", "a whole number"),
        ("epochs", "True", "a whole number"),
        ("quick", "1", "True or False"),
        ("lr", "nan", "no finite number"),
        ("class", "1", "not a name for a Python variable"),
        ("x = 1; y", "1", "not a name for a Python variable"),
    ],
)
def test_slips_are_refused_with_what_is_there(name: str, text: str, reason: str) -> None:
    known = declared(PLAIN)
    problem = problem_with({name: from_text(text, name, known)}, known)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(problem)


def test_a_cell_that_cannot_be_read_refuses_no_name() -> None:
    broken = document(("parameters", "lr = = 1"))
    assert problem_with({"anything": 1}, declared(broken)) is None
