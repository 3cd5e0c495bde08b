"""History: use of devices over hours and days, by which users, and how long cells waited."""

from __future__ import annotations

import time
from typing import Any

import panel as pn
from bokeh.models import Range1d

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.history.charts import LinesChart, SharesChart, axis_ms
from djinn_lab.dashboard.history.ranges import RANGE_DEFAULT, RANGES, HistoryCache, HistoryRange, suited_range
from djinn_lab.dashboard.history.section import HistorySection
from djinn_lab.dashboard.history.series import (
    PROJECTS,
    USERS,
    drawn_lines,
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
    SHARES_SHOWN_MAX,
    share_table,
    shares_csv,
    total_columns,
    total_rows,
    utilisation_csv,
    utilisation_table,
    wait_table,
    waits_csv,
)
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import choice_bar, control_bar
from djinn_lab.dashboard.widgets.panes import (
    NO_JOBS,
    empty_state,
    heading,
    html_pane,
    notice,
    show_html,
    show_known,
)
from djinn_lab.errors import DjinnError
from djinn_lab.protocol.rest.history import PoolHistory
from djinn_lab.units import format_seconds

NOTHING_READ = PoolHistory(0.0, 1.0, 1.0)


class HistoryPage:
    """State: the address holds the range, and whose shares are shown."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._cache = board.hub.keep("history", HistoryCache)
        self._snapshot = Snapshot()
        self._asked: tuple[str, str] | None = None
        self._asked_s = 0.0
        self._filling = False
        self._suited = RANGE_DEFAULT
        self.history: PoolHistory | None = None
        self.range = choice_bar({one.label: one.name for one in RANGES.values()}, RANGE_DEFAULT)
        self.by = choice_bar({"Users": USERS, "Projects": PROJECTS}, USERS, align="end")
        self._build_sections()
        self._build_view()
        for control in (self.range, self.by):
            control.param.watch(lambda event: board.background.soon(self._choices_changed), "value")
        for section in (self.use, self.waits, self.shares):
            section.as_table.param.watch(lambda event: board.background.soon(self._switch), "value")

    def _build_sections(self) -> None:
        look = self._board.look
        self._times = Range1d(0, 1, reset_start=0, reset_end=1)
        self._drawn_range = ""
        percent = "{:.0%}".format
        self.use_chart = LinesChart(look, "time with cells", self._times, percent, fixed=True)
        self.wait_chart = LinesChart(look, "wait", self._times, format_seconds, fixed=False)
        self.share_chart = SharesChart(look, self._times)
        self.use = HistorySection(
            "Utilisation", self.use_chart, "utilisation.csv", lambda: utilisation_csv(self._known())
        )
        self.waits = HistorySection("Waits", self.wait_chart, "waits.csv", lambda: waits_csv(self._known()))
        self.shares = HistorySection(
            "Shares", self.share_chart, "shares.csv", lambda: shares_csv(self._known()), self.by
        )
        self.totals = LiveTable(
            columns=total_columns(USERS),
            label="Shares of the whole time",
            margin=(10, 0, 0, 0),
            sizing_mode="stretch_width",
        )

    def _build_view(self) -> None:
        full: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
        self._heading = html_pane(margin=(0, 0, 8, 0))
        self._problem = html_pane(margin=(0, 0, 4, 0))
        self._empty = html_pane(visible=False)
        self._charts = pn.Column(
            self.use.view, self.waits.view, self.shares.view, self.totals, visible=False, **full
        )
        self._live = pn.Column(
            self._heading, control_bar(self.range), self._problem, self._empty, self._charts, **full
        )
        self._live.visible = False
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, **full)

    @property
    def _range(self) -> HistoryRange:
        return RANGES[self.range.value]

    def _known(self) -> PoolHistory:
        return self.history or NOTHING_READ

    def enter(self) -> None:
        """Called when the page is shown: follow the address."""
        route = self._board.route
        self._suited = suited_range(self._board.hub.snapshot())
        self._filling = True  # or the first choice would be written over the second in the address
        self.range.value = RANGES.get(route.get("range"), RANGES[self._suited]).name
        self.by.value = PROJECTS if route.get("by") == PROJECTS else USERS
        self._filling = False

    def update(self, snapshot: Snapshot) -> None:
        """Ask for the range again when that is due. A pool that is away leaves what it said before."""
        self._snapshot = snapshot
        if not show_known(self._live, self._missing, snapshot, snapshot.status):
            return
        assert snapshot.status is not None
        asked = (snapshot.status.pool, self.range.value)
        due = asked != self._asked or time.monotonic() - self._asked_s > self._range.refresh_s
        if due and snapshot.connection == "live":
            if asked != self._asked:
                text = "Asking the pool."
                show_html(self._heading, heading("History", text))
            self._asked, self._asked_s = asked, time.monotonic()
            self._read(snapshot.status.pool, snapshot.status.now)

    def _read(self, pool: str, now: float) -> None:
        chosen, hub = self._range, self._board.hub
        self._board.background.run(
            "history",
            lambda: self._cache.read(hub.reader(), chosen, pool, now),
            lambda history: self.show(history, chosen),
            self._failed,
        )

    def _failed(self, error: DjinnError) -> None:
        show_html(self._problem, notice(f"No newer history: {error.message}", error.advice, "bad"))

    def show(self, history: PoolHistory, chosen: HistoryRange) -> None:
        """Show a time of the pool."""
        self.history = history
        show_html(self._problem, "")
        text = f"{chosen.words.capitalize()} in steps of {chosen.step}, from what the pool’s database keeps."
        show_html(self._heading, heading("History", text))
        empty = nothing_ran(history)
        show_html(self._empty, self._nothing(chosen) if empty else "")
        self._empty.visible, self._charts.visible = empty, not empty
        if empty:
            return
        self._show_times(history)
        lines, waits = utilisation_lines(history), wait_lines(history)
        self.use_chart.show(history, drawn_lines(lines))
        self.use.show(utilisation_sentence(history, chosen.words), lambda: utilisation_table(history, lines))
        self.wait_chart.show(history, waits)
        self.waits.show(wait_sentence(history, chosen.words), lambda: wait_table(history, waits))
        self._show_shares(history)

    def _show_times(self, history: PoolHistory) -> None:
        """Show the whole time, unless the visitor looks at a part of the same range."""
        times, whole = self._times, (axis_ms(history.since), axis_ms(history.until))
        looks_closer = (times.start, times.end) != (times.reset_start, times.reset_end)
        if not looks_closer or self.range.value != self._drawn_range:
            times.update(start=whole[0], end=whole[1])
        times.update(reset_start=whole[0], reset_end=whole[1])
        self._drawn_range = self.range.value

    def _show_shares(self, history: PoolHistory) -> None:
        by = self.by.value
        shares = shares_by(history, by)
        drawn = drawn_shares(shares)
        self.share_chart.show(history, drawn)
        self.shares.show(share_sentence(shares, by), lambda: share_table(history, drawn))
        self.totals.columns = total_columns(by)
        left_out = len(shares) - SHARES_SHOWN_MAX
        note = f"The first {SHARES_SHOWN_MAX} of {len(shares)}; the CSV has all" if left_out > 0 else ""
        self.totals.show(total_rows(shares), note)

    def _nothing(self, chosen: HistoryRange) -> str:
        """Say that nothing ran, and what to do."""
        if not self._snapshot.jobs:
            return NO_JOBS
        longest = max(RANGES.values(), key=lambda one: one.seconds)
        advice = "Run one with %%djinn." if chosen is longest else "Choose a longer time above."
        return empty_state(f"No cell ran in {chosen.words}", advice)

    def _choices_changed(self) -> None:
        if self._filling:
            return
        self._board.route.update(
            range=None if self.range.value == self._suited else self.range.value,
            by=None if self.by.value == USERS else self.by.value,
        )
        if self.history is not None and not nothing_ran(self.history):
            self._show_shares(self.history)
        self.update(self._snapshot)

    def _switch(self) -> None:
        for section in (self.use, self.waits, self.shares):
            section.switch()
