"""What the colours of a graph stand for: the choice, the legend, and the comparison with another run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.graph.changes import CHANGE_COLUMNS, OUTSIDE, ItemChanges
from djinn_lab.dashboard.graph.comparing import RunComparer
from djinn_lab.dashboard.graph.folding import Item, Tree
from djinn_lab.dashboard.graph.shading import (
    COLOUR_LABELS,
    ChangeShading,
    ColourBy,
    PhaseShading,
    Shading,
    colour_choice,
    figures_shading,
)
from djinn_lab.dashboard.graph.store import GraphStore
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.chooser import CellPart
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import choice_bar, control_bar
from djinn_lab.dashboard.widgets.panes import heading, html_pane, notice, show_html
from djinn_lab.dashboard.widgets.theme import colour_legend
from djinn_lab.errors import DjinnError, PoolError
from djinn_lab.protocol.rest.jobs import JobView


class _Wanted(NamedTuple):
    """What decides on the colours; ``tree``: its id, as another graph may have the same job and part."""

    tree: int
    job: str
    finished: bool
    by: ColourBy
    other: str


class Colouring:
    """Colour the boxes of a graph. The address holds what for (``colour``) and the other run (``diff``);
    ``on_change`` is called when the colours are others."""

    def __init__(self, board: Board, store: GraphStore, on_change: Callable[[], None]) -> None:
        self._board, self._store, self._on_change = board, store, on_change
        self._wanted: _Wanted | None = None
        self._filling = False
        self.shading: Shading | None = None
        self.changes: ItemChanges | None = None
        self.by: ColourBy = "phase"
        self.comparer = RunComparer(board)
        choices = {label: name for name, label in COLOUR_LABELS.items() if name != "change"}
        self.choice = choice_bar(choices, "phase", align="end")
        self.choice.param.watch(lambda event: self._chosen(event.new), "value")
        self.bar = control_bar(self.choice, *self.comparer.view)
        self.legend = html_pane(margin=(4, 0, 8, 0))
        self.message = html_pane(margin=(0, 0, 6, 0))
        self._build_table()

    def _build_table(self) -> None:
        self._heading = html_pane(margin=(14, 0, 6, 0))
        self.rows_by = choice_bar({"Groups": "group", "Ops": "op"}, "group")
        self.rows_by.param.watch(lambda event: self._board.background.soon(self._fill_table), "value")
        self.table = LiveTable(
            columns=CHANGE_COLUMNS,
            selectable=True,
            label="What changed between two runs",
            sizing_mode="stretch_width",
        )
        self.table.param.watch(lambda event: self._row_chosen(event.new), "selected")
        self.compared = pn.Column(
            self._heading, self.rows_by, self.table, sizing_mode="stretch_width", margin=0, visible=False
        )

    def _chosen(self, by: ColourBy) -> None:
        if not self._filling:
            default = "change" if self.comparer.active else "phase"
            self._board.route.update(colour=None if by == default else by)

    def _row_chosen(self, name: str) -> None:
        """Search the graph for the group or op of a row."""
        if name and not name.startswith(OUTSIDE):
            self._board.route.update(q=re.escape(name))

    def figure_of(self, item: Item) -> tuple[str, str] | None:
        """Return what an item's colour stands for and the figure; None for the phase, which details have."""
        figure = "" if self.shading is None else self.shading.shade(item).figure
        return (COLOUR_LABELS[self.by], figure) if figure else None

    def begin(self, tree: Tree) -> Shading:
        """Return the colours to draw a new graph in until :meth:`follow` has found those of the address."""
        self._wanted, self.changes = None, None
        self._take("phase", PhaseShading(tree, self._board.look))
        assert self.shading is not None
        return self.shading

    def follow(self, snapshot: Snapshot, job: JobView, part: CellPart, tree: Tree) -> None:
        """Find the colours again when the address, or what is known of the run, changed."""
        self.comparer.update(snapshot, job)
        comparing = self.comparer.active
        by = colour_choice(self._board.route.get("colour"), comparing)
        self._fill_choice(by, comparing)
        other = self._board.route.get("diff")
        wanted = _Wanted(id(tree), job.job, job.finished, by, other)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        show_html(self.message, "")
        if by == "phase" and not comparing:
            self.changes = None
            self._take(by, PhaseShading(tree, self._board.look))
            self._show_changes()
            self._on_change()
            return
        self._find(wanted, snapshot, job, part, tree)

    def _fill_choice(self, by: ColourBy, comparing: bool) -> None:
        names = [name for name in COLOUR_LABELS if comparing or name != "change"]
        options = {COLOUR_LABELS[name]: name for name in names}
        self._filling = True
        if self.choice.options != options:
            self.choice.param.update(options=options, value=by)
        elif self.choice.value != by:
            self.choice.value = by
        self._filling = False

    def _find(self, wanted: _Wanted, snapshot: Snapshot, job: JobView, part: CellPart, tree: Tree) -> None:
        look, store, hub = self._board.look, self._store, self._board.hub

        def work() -> tuple[ItemChanges | None, Shading]:
            changes = self.comparer.read(store, snapshot, job, part, tree) if wanted.other else None
            if wanted.by == "phase":
                return changes, PhaseShading(tree, look)
            if wanted.by == "change":
                assert changes is not None
                return changes, ChangeShading(changes, look)
            found = figures_shading(wanted.by, store.figures(hub.reader(), job, part, tree), look)
            if found is None:
                raise PoolError("Not all ops of this part have run, so it has no measured times")
            return changes, found

        def done(result: tuple[ItemChanges | None, Shading]) -> None:
            if wanted == self._wanted:
                self.changes, shading = result
                self._take(wanted.by, shading)
                self._show_changes()
                self._on_change()

        def failed(error: DjinnError) -> None:
            if wanted == self._wanted:
                self.changes = None
                self._take("phase", PhaseShading(tree, look))
                text = f"The colours are those of the phases. {error.message}"
                show_html(self.message, notice(text, error.advice))
                self._show_changes()
                self._on_change()

        self._board.background.run("colours", work, done, failed)

    def _take(self, by: ColourBy, shading: Shading) -> None:
        self.by, self.shading = by, shading
        show_html(self.legend, colour_legend(shading.legend, f"Colours: {COLOUR_LABELS[by]}"))

    def _show_changes(self) -> None:
        self.compared.visible = self.changes is not None
        if self.changes is not None:
            show_html(self._heading, heading("Compared with another run", self.changes.sentence()))
            self._fill_table()

    def _fill_table(self) -> None:
        if self.changes is not None:
            self.table.show(*self.changes.rows(self.rows_by.value))
