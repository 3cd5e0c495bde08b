"""A time of the pool as lines, shares, tables and sentences."""

from __future__ import annotations

import csv
from io import StringIO
from math import isnan

from bokeh.models import Range1d

from djinn_lab.dashboard.history.charts import LinesChart, SharesChart, axis_ms
from djinn_lab.dashboard.history.ranges import RANGES, suited_range
from djinn_lab.dashboard.history.series import (
    ALL_DEVICES,
    NO_PROJECT,
    OTHERS,
    PROJECTS,
    USERS,
    down_times,
    drawn_shares,
    nothing_ran,
    share_sentence,
    shares_by,
    utilisation_lines,
    utilisation_sentence,
    wait_lines,
    wait_sentence,
)
from djinn_lab.dashboard.history.tables import (
    share_table,
    shares_csv,
    total_rows,
    utilisation_csv,
    utilisation_table,
    wait_table,
    waits_csv,
)
from djinn_lab.dashboard.hub import JOBS_MAX, Snapshot
from djinn_lab.dashboard.widgets.theme import LIGHT
from djinn_lab.protocol.rest.history import (
    AccountHistory,
    DeviceHistory,
    HistorySpan,
    PoolHistory,
    WaitHistory,
)
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.status import PoolStatus

UP = (0.0, 600.0, 600.0, 600.0, 0.0, 300.0)
"""The pool was away in the first and the fifth bucket."""


def an_hour() -> PoolHistory:
    """Six buckets of ten minutes, of two devices."""
    return PoolHistory(
        0.0,
        3600.0,
        600.0,
        devices=(
            DeviceHistory("cpu:0", UP, (0.0, 300.0, 10.0, 0.0, 0.0, 310.0)),
            DeviceHistory("cpu:1", UP, (0.0, 0.0, 0.0, 0.0, 0.0, 300.0)),
        ),
        accounts=(
            AccountHistory("bob", "bob", (0.0, 0.0, 0.0, 0.0, 0.0, 300.0)),
            AccountHistory("vision/ann", "ann", (0.0, 300.0, 10.0, 0.0, 0.0, 310.0)),
            AccountHistory("vision/id", "id", (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
        ),
        waits=WaitHistory(
            (0, 3, 1, 0, 0, 2), (None, 1.0, 2.0, None, None, 0.5), (None, 4.0, 2.0, None, None, 0.9)
        ),
    )


def test_a_pool_that_was_down_is_a_gap_and_an_idle_one_is_zero() -> None:
    together, first, second = utilisation_lines(an_hour())
    assert (together.name, first.name, second.name) == (ALL_DEVICES, "cpu:0", "cpu:1")
    assert first.values == (None, 0.5, 10 / 600, 0.0, None, 1.0)
    assert together.values[1] == 0.25
    assert down_times(an_hour()) == [(0.0, 600.0), (2400.0, 3000.0)]
    chart = LinesChart(LIGHT, "time with cells", Range1d(0, 1), "{:.0%}".format, fixed=True)
    chart.show(an_hour(), [first])
    drawn = chart.lines[0].data
    assert [isnan(value) for value in drawn["y"]] == [True] * 2 + [False] * 6 + [True] * 2 + [False] * 2
    assert drawn["x"][2:4] == [axis_ms(600.0), axis_ms(1200.0)], "one bucket alone is still seen"
    assert drawn["value"][2] == "50%"
    assert list(chart.down.data["left"]) == [axis_ms(0.0), axis_ms(2400.0)]
    assert "no pool served" in chart.legend


def test_shares_are_of_users_or_of_the_projects_above_them() -> None:
    ann, bob, other = shares_by(an_hour(), USERS)
    assert [share.name for share in (ann, bob, other)] == ["ann", "bob", "id"]
    assert (ann.total_s, round(ann.part, 3), other.total_s) == (620.0, 0.674, 0.0)
    vision, none = shares_by(an_hour(), PROJECTS)
    assert (vision.name, vision.total_s, none.name) == ("vision", 620.0, NO_PROJECT)
    assert share_sentence([vision, none], "project") == (
        "2 projects used 15 min 20 s of device time; vision used most, 67%."
    )
    assert [row["part"]["text"] for row in total_rows([ann, bob])] == ["67.4%", "32.6%"]


def test_small_shares_are_drawn_as_one_on_top() -> None:
    accounts = tuple(AccountHistory(f"u{n}", f"u{n}", (float(9 - n), 0.0)) for n in range(9))
    history = PoolHistory(0.0, 20.0, 10.0, accounts=accounts)
    drawn = drawn_shares(shares_by(history, USERS))
    assert [share.name for share in drawn] == ["u0", "u1", "u2", "u3", "u4", OTHERS]
    assert sum(share.total_s for share in drawn) == 45.0
    chart = SharesChart(LIGHT, Range1d(0, 1))
    chart.show(history, drawn)
    assert (chart.bars.data["name"][-1], chart.bars.data["top"][-1]) == (OTHERS, 4.5)
    assert len(set(chart.bars.data["colour"])) == 6


def test_every_chart_has_its_table_without_empty_buckets() -> None:
    history = an_hour()
    use = utilisation_table(history, utilisation_lines(history))
    assert [column["label"] for column in use.columns] == ["From", ALL_DEVICES, "cpu:0", "cpu:1"]
    assert [row["id"] for row in use.rows] == ["3000", "1800", "1200", "600"]
    waits = wait_table(history, wait_lines(history))
    assert [column["label"] for column in waits.columns] == ["From", "Cells", "Median", "90 % below"]
    assert [row["0"]["text"] for row in waits.rows] == ["2", "1", "3"]
    shares = share_table(history, shares_by(history, USERS))
    assert shares.rows[0]["0"]["text"] == "5 min 10 s"
    assert shares.rows[0]["2"] is None, "also of a user who is called as a key of rows"


def test_files_have_every_bucket() -> None:
    def rows(text: str) -> list[list[str]]:
        return list(csv.reader(StringIO(text)))

    assert len(rows(utilisation_csv(an_hour()))) == 1 + 6 * 2
    assert rows(waits_csv(an_hour()))[2] == ["600.0", "1200.0", "3", "1.0", "4.0"]
    assert rows(waits_csv(an_hour()))[1] == ["0.0", "600.0", "0", "", ""]
    assert rows(shares_csv(an_hour()))[1] == ["600.0", "1200.0", "ann", "vision/ann", "300.0"]


def test_sentences_sum_a_time_up() -> None:
    assert utilisation_sentence(an_hour(), "the last hour") == (
        "In the last hour, 2 devices ran cells for 22% of the 35 min 0 s for which a pool served."
    )
    sentence = wait_sentence(an_hour(), "the last hour")
    assert sentence.startswith("6 cells of the last hour began to run.")
    assert sentence.endswith("on: nine of ten began within 4.0 s.")
    empty = PoolHistory(0.0, 10.0, 10.0, waits=WaitHistory((0,), (None,), (None,)))
    assert nothing_ran(empty)
    assert not nothing_ran(an_hour())
    assert utilisation_sentence(empty, "the last day") == "No pool is known to have served in the last day."
    nothing = "No cell that was submitted in the last day has begun to run."
    assert wait_sentence(empty, "the last day") == nothing


def test_buckets_of_a_range_stay_where_they_are_as_time_passes() -> None:
    week = RANGES["week"]
    assert week.since(1e9) % week.bucket_s == 0
    assert week.since(1e9 + 10) - week.since(1e9) in (0, week.bucket_s)
    for one in RANGES.values():
        assert HistorySpan.of(one.since(1e9), 1e9, one.bucket_s).count <= 122


def test_a_young_pool_shows_its_last_hour_and_an_older_one_its_last_day() -> None:
    def suited(*ages_s: float) -> str:
        jobs = tuple(JobView(f"{age_s}", submitted_at=1e9 - age_s) for age_s in ages_s)
        return suited_range(Snapshot(status=PoolStatus("p", now=1e9), jobs=jobs))

    assert suited() == suited(10.0, 3500.0) == "hour"
    assert suited(10.0, 3700.0) == "day"
    assert suited(*(1.0 + number for number in range(JOBS_MAX))) == "day", "there may be older ones"
    assert suited_range(Snapshot()) == "day"
