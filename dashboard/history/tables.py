"""A time of the pool as rows of tables and as CSV, newest bucket first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from djinn_lab.dashboard.csv_text import csv_text
from djinn_lab.dashboard.history.series import Line, Share, moment
from djinn_lab.dashboard.widgets.table_cells import columns, number_cell, share_cell
from djinn_lab.protocol.rest.history import PoolHistory
from djinn_lab.units import format_seconds

SHARES_SHOWN_MAX = 200


class BucketTable(NamedTuple):
    """A table with a row for each bucket of which something is known."""

    columns: list[dict[str, str]]
    rows: list[dict[str, object]]


def utilisation_table(history: PoolHistory, lines: Sequence[Line]) -> BucketTable:
    """Return the parts of their time for which devices ran cells."""
    return _bucket_table(history, [(line, "{:.0%}".format) for line in lines])


def wait_table(history: PoolHistory, lines: Sequence[Line]) -> BucketTable:
    """Return waits, and how many cells had them."""
    cells = Line("Cells", tuple(float(count) or None for count in history.waits.cells))
    return _bucket_table(history, [(cells, "{:,.0f}".format), *((line, format_seconds) for line in lines)])


def share_table(history: PoolHistory, shares: Sequence[Share]) -> BucketTable:
    """Return the device time of users or projects."""
    lines = [Line(share.name, tuple(seconds or None for seconds in share.device_s)) for share in shares]
    return _bucket_table(history, [(line, format_seconds) for line in lines])


def _bucket_table(history: PoolHistory, lines: Sequence[tuple[Line, Callable[[float], str]]]) -> BucketTable:
    """Columns are known by their number: users may be called like anything."""
    named = [(f"{number}", line.name, "number") for number, (line, _) in enumerate(lines)]
    rows: list[dict[str, object]] = []
    for bucket in reversed(range(history.count)):
        cells = [number_cell(line.values[bucket], show) for line, show in lines]
        if any(cell is not None for cell in cells):
            rows.append({**_at(history, bucket), **{f"{n}": cell for n, cell in enumerate(cells)}})
    return BucketTable(columns(("at", "From", "short"), *named), rows)


def total_columns(by: str) -> list[dict[str, str]]:
    """Describe the table of whole shares. ``by``: user or project."""
    return columns(
        ("name", by.capitalize(), "mono"), ("used", "Device time", "number"), ("part", "Share", "progress")
    )


def total_rows(shares: Sequence[Share]) -> list[dict[str, object]]:
    """Return what users or projects used in the whole time, at most SHARES_SHOWN_MAX of them."""
    return [
        {
            "id": share.name,
            "name": share.name,
            "used": number_cell(share.total_s, format_seconds),
            "part": share_cell(share.part, "{:.1%}".format),
        }
        for share in shares[:SHARES_SHOWN_MAX]
    ]


def utilisation_csv(history: PoolHistory) -> str:
    """Return every bucket of every device: seconds for which it served and ran cells."""
    rows = (
        (history.begins(bucket), history.ends(bucket), one.device, one.up_s[bucket], one.busy_s[bucket])
        for bucket in range(history.count)
        for one in history.devices
    )
    return csv_text(("from", "to", "device", "up_s", "busy_s"), rows)


def waits_csv(history: PoolHistory) -> str:
    """Return every bucket with the number of its cells and their waits."""
    waits = history.waits
    rows = (
        (history.begins(bucket), history.ends(bucket), *values)
        for bucket, values in enumerate(zip(waits.cells, waits.median_s, waits.p90_s, strict=True))
    )
    return csv_text(("from", "to", "cells", "wait_median_s", "wait_p90_s"), rows)


def shares_csv(history: PoolHistory) -> str:
    """Return every bucket of every user and account in which something was used."""
    rows = (
        (history.begins(bucket), history.ends(bucket), one.user, one.account, one.device_s[bucket])
        for bucket in range(history.count)
        for one in history.accounts
        if one.device_s[bucket]
    )
    return csv_text(("from", "to", "user", "account", "device_s"), rows)


def _at(history: PoolHistory, bucket: int) -> dict[str, object]:
    begins = history.begins(bucket)
    return {"id": f"{begins:.0f}", "at": number_cell(begins, lambda at: moment(at, history.bucket_s))}
