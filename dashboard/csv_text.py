"""Text of CSV files. A spreadsheet computes cells that begin like a formula, and users choose names: such a
cell gets an apostrophe before it, with which spreadsheets show text."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(fields: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a header and rows as CSV, without formulas."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(fields)
    writer.writerows([_plain(value) for value in row] for row in rows)
    return text.getvalue()


def _plain(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
