"""Results of ``djinn-lab simulate``: policies side by side on the same jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.simulation.charts import SimulationCharts
from djinn_lab.dashboard.simulation.tables import (
    ACCOUNT_COLUMNS,
    ACCOUNTS_SHOWN_MAX,
    POLICY_COLUMNS,
    account_rows,
    best_sentence,
    policy_rows,
    result_sentence,
)
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import file_input, select
from djinn_lab.dashboard.widgets.panes import empty_state, heading, html_pane, notice, show_html
from djinn_lab.errors import DjinnError
from djinn_lab.simulator.queue.result_file import FILE_VARIABLE, QueueResult, parse_result, read_result

NOTHING_OPEN = empty_state(
    "What would another policy have done?",
    "Run a trace of jobs through the pool’s own scheduler, then open the file that it writes here:",
    "djinn-lab simulate synthetic --policy all --out result.json",
)


class SimulationPage:
    """State: the address holds the chosen policy. The file is opened in the browser, or named when the
    dashboard is started; the pool is not asked."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._result: QueueResult | None = None
        self.file = file_input("Open a result file", accept=".json")
        self.pool = select("Part of the cluster", [""], width=220, visible=False)
        self.policies = LiveTable(
            columns=POLICY_COLUMNS, label="Policies", selectable=True, sizing_mode="stretch_width"
        )
        self.accounts = LiveTable(columns=ACCOUNT_COLUMNS, label="Accounts", sizing_mode="stretch_width")
        self.charts = SimulationCharts(board.look)
        self._heading = html_pane(margin=(0, 0, 8, 0))
        self._accounts_heading = html_pane(margin=(16, 0, 6, 0))
        self._message = html_pane(NOTHING_OPEN)
        full: dict[str, object] = {"sizing_mode": "stretch_width", "margin": 0}
        self._shown = pn.Column(
            self._heading,
            self.policies,
            self.pool,
            self.charts.view,
            self._accounts_heading,
            self.accounts,
            visible=False,
            **full,
        )
        self.view = pn.Column(self.file, self._message, self._shown, **full)
        self.file.param.watch(lambda event: self._opened(), "value")
        self.pool.param.watch(lambda event: self._draw(), "value")
        self.policies.param.watch(lambda event: self._chosen(), "selected")
        named = os.environ.get(FILE_VARIABLE)
        if named:
            self._read(lambda: read_result(Path(named)))

    def enter(self) -> None:
        """Called when the page is shown: follow the address."""
        self.policies.selected = self._board.route.get("policy")

    def update(self, snapshot: Snapshot) -> None:
        """Do nothing: nothing here depends on the pool."""

    def _opened(self) -> None:
        content, name = self.file.value, self.file.filename or "The file"
        if content:
            self._read(lambda: parse_result(content, name))

    def _read(self, work: Callable[[], QueueResult]) -> None:
        show_html(self._message, notice("Reading the file."))
        self._board.background.run("simulation", work, self.show, self._failed)

    def _failed(self, error: DjinnError) -> None:
        """Show that the file cannot be read; the result shown before stays."""
        show_html(self._message, notice(error.message, error.advice, "bad"))

    def show(self, result: QueueResult) -> None:
        """Show a result."""
        self._result = result
        show_html(self._message, "")
        summary = " ".join(part for part in (result_sentence(result), best_sentence(result)) if part)
        show_html(self._heading, heading(f"Simulated: {result.trace}", summary))
        self.policies.show(policy_rows(result))
        pools = list(result.nodes)
        self.pool.param.update(
            options={pool or "all": pool for pool in pools}, value=pools[0], visible=len(pools) > 1
        )
        self._draw()
        self._shown.visible = True
        self._show_accounts()

    def _draw(self) -> None:
        if self._result is not None:
            self.charts.show(self._result, self.pool.value)
            self.charts.highlight(self.policies.selected)

    def _chosen(self) -> None:
        self._board.route.update(policy=self.policies.selected)
        self.charts.highlight(self.policies.selected)
        self._show_accounts()

    def _show_accounts(self) -> None:
        """Show the accounts of the chosen policy, else of the first."""
        if self._result is None or not self._result.runs:
            return
        runs = {run.figures.policy: run for run in self._result.runs}
        run = runs.get(self.policies.selected, self._result.runs[0])
        show_html(self._accounts_heading, heading(f"Accounts under {run.figures.policy}"))
        more = len(run.accounts) - ACCOUNTS_SHOWN_MAX
        note = f"The first {ACCOUNTS_SHOWN_MAX} of {len(run.accounts)}" if more > 0 else ""
        self.accounts.show(account_rows(run.accounts), note)
