"""SRG: the graph of one cell, folded by module, with search and details."""

from __future__ import annotations

import json
import re
from io import StringIO

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.graph.details import details_html
from djinn_lab.dashboard.graph.folding import VISIBLE_MAX, Tree
from djinn_lab.dashboard.graph.scene import Scene, format_flops, sentence
from djinn_lab.dashboard.graph.store import GraphStore
from djinn_lab.dashboard.graph.view import GraphView
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.chooser import JobChooser
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button, control_bar, download, text_input, toggle
from djinn_lab.dashboard.widgets.panes import (
    NO_JOBS,
    empty_state,
    heading,
    html_pane,
    no_pool,
    notice,
    show_html,
)
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.dashboard.widgets.theme import legend_html
from djinn_lab.errors import DjinnError, PoolError
from djinn_lab.srg.export import to_json
from djinn_lab.units import format_bytes

TABLE_COLUMNS = columns(
    ("name", "Box", "mono"),
    ("path", "Module", "text"),
    ("phase", "Phase", "short"),
    ("ops", "Ops", "number"),
    ("flops", "FLOPs", "number"),
    ("written", "Written", "number"),
)
_HINT = (
    "<p class='muted'>Click a folded group (▸) to open it, its header (▾) to fold it, "
    "an op to see its fields.</p>"
)
_STACKED = "@media (max-width: 800px) { :host { display: block !important; } }"
"""Below that width the details of an op come below the graph."""


class SrgPage:
    """The page Graph; the address holds job, segment, open groups (``open``), chosen box (``item``) and
    search (``q``)."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._store: GraphStore = board.hub.keep("graphs", GraphStore)
        self.chooser = JobChooser(board)
        self.tree: Tree | None = None
        self.scene: Scene | None = None
        self._wanted: tuple[str, int | None, int] | None = None
        self.graph = GraphView(board.look, self._tapped)
        self._build_controls()
        self._build_view()

    def _build_controls(self) -> None:
        self.search = text_input("Search (regular expression)", value=self._board.route.get("q"), width=230)
        self.next = button("Next match", disabled=True, align="end")
        self.fold = button("Fold all", align="end")
        self.unfold = button("Open one level", align="end")
        self.fit = button("Fit", align="end")
        self.as_table = toggle("View as table", align="end")
        self.save = download("Graph as JSON", "srg.json", self._json, align="end")
        self._match = 0
        soon = self._board.background.soon
        self.search.param.watch(lambda event: soon(self._searched), "value")
        self.next.on_click(lambda event: soon(self._next_match))
        self.fold.on_click(lambda event: soon(lambda: self._open(frozenset())))
        self.unfold.on_click(lambda event: soon(self._open_level))
        self.fit.on_click(lambda event: soon(self._fit))
        self.as_table.param.watch(lambda event: soon(self._table_toggled), "value")

    def _build_view(self) -> None:
        self._heading = html_pane(margin=(10, 0, 6, 0))
        self.message = html_pane(margin=(0, 0, 6, 0))
        self.details = html_pane(_HINT, margin=(0, 0, 0, 16), width=330, sizing_mode=None)
        self.table = LiveTable(
            columns=TABLE_COLUMNS,
            selectable=True,
            label="Boxes of the graph",
            visible=False,
            sizing_mode="stretch_width",
        )
        self.table.param.watch(
            lambda event: self._board.background.soon(lambda: self._row_chosen(event.new)), "selected"
        )
        self._figure = pn.pane.Bokeh(self.graph.figure, sizing_mode="stretch_width", margin=0)
        side = pn.Column(self.details, width=350, margin=0, scroll=True, max_height=640)
        body = pn.Row(
            self._figure, self.table, side, sizing_mode="stretch_width", margin=0, stylesheets=[_STACKED]
        )
        bar = control_bar(
            self.search,
            self.next,
            self.unfold,
            self.fold,
            self.fit,
            self.as_table,
            self.save,
        )
        legend = html_pane(legend_html(), margin=(4, 0, 8, 0))
        self._live = pn.Column(
            self.chooser.view,
            bar,
            self._heading,
            legend,
            self.message,
            body,
            sizing_mode="stretch_width",
            margin=0,
            visible=False,
        )
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, sizing_mode="stretch_width", margin=0)

    def enter(self) -> None:
        """Called when the page is shown or its address changed."""
        if self.search.value != self._board.route.get("q"):
            self.search.value = self._board.route.get("q")
        if self.tree is not None:
            self._draw()

    def update(self, snapshot: Snapshot) -> None:
        """Follow the choice of a job; a graph itself never changes."""
        chosen = self.chooser.wanted(snapshot)
        if chosen is None:
            self._say_missing(snapshot)
            return
        self.chooser.update(snapshot)
        job, segment = chosen
        wanted = (job.job, segment, job.segments)
        if wanted == self._wanted:
            return
        first = self._wanted is None or self._wanted[:2] != wanted[:2]
        self._wanted = wanted
        if first:
            self._show_only(empty_state("Reading the graph", f"Cell {job.cell or job.short_id}"))
        self._load(wanted, first)

    def _say_missing(self, snapshot: Snapshot) -> None:
        if snapshot.status is None or snapshot.connection != "live":
            text = no_pool(snapshot.connection, snapshot.message, snapshot.advice)
        else:
            text = NO_JOBS
        self._show_only(text)

    def _show_only(self, text: str) -> None:
        show_html(self._missing, text)
        self._missing.visible = bool(text)
        self._live.visible = not text

    def _load(self, wanted: tuple[str, int | None, int], first: bool) -> None:
        hub, store = self._board.hub, self._store
        saved = _numbers(self._board.route.get("open"))

        def work() -> tuple[Tree, Scene, frozenset[int]]:
            tree = store.tree(hub.reader(), *wanted)
            if not tree.srg.nodes:
                raise PoolError("This cell ran no ops", "Choose another cell")
            opened = (
                frozenset(number for number in saved if number < len(tree.items)) if saved else tree.start()
            )
            return tree, store.scene(tree, opened), opened

        def done(result: tuple[Tree, Scene, frozenset[int]]) -> None:
            self.tree, scene, self._opened = result
            self._show_only("")
            self._show_scene(scene, None)
            self._say_matches()

        self._board.background.run("graph", work, done, self._failed)

    def _failed(self, error: DjinnError) -> None:
        self.tree = None
        text = empty_state("This cell has no graph to show", f"{error.message} {error.advice}")
        self._show_only(text + _CHOOSE_OTHER)
        self._live.visible = False

    def _show_scene(self, scene: Scene, focus: int | None) -> None:
        assert self.tree is not None
        self.scene = scene
        self.graph.show(self.tree, scene, self._marked(), self._chosen(), focus)
        self._describe()

    def _draw(self) -> None:
        """Redraw after the address changed: other groups open, or another box chosen."""
        assert self.tree is not None
        saved = self._board.route.get("open")
        opened = _numbers(saved) if saved else self._opened
        if opened != self._opened and saved:
            self._open(opened)
        elif self.scene is not None:
            self.graph.paint(self.tree, self.scene, self._marked(), self._chosen())
            self._describe()

    def _open(self, groups: frozenset[int], focus: int | None = None) -> None:
        """Expand exactly ``groups``, unless too many boxes would show."""
        if self.tree is None:
            return
        tree, store = self.tree, self._store
        count = len(tree.visible(groups))
        if count > VISIBLE_MAX:
            text = f"That would show {count} boxes; at most {VISIBLE_MAX} stay readable"
            show_html(self.message, notice(text, "Fold another group first, or search for an op"))
            return
        show_html(self.message, "")
        self._opened = groups

        def done(scene: Scene) -> None:
            self._show_scene(scene, focus)

        self._board.route.update(open=",".join(map(str, sorted(groups))) or "0")
        self._board.background.run("scene", lambda: store.scene(tree, groups), done, self._failed)

    def _open_level(self) -> None:
        if self.tree is None:
            return
        groups = [item for item in self.tree.visible(self._opened) if item.is_group]
        self._open(self._opened | {item.index for item in groups})

    def _tapped(self, index: int) -> None:
        if self.tree is None or index >= len(self.tree.items):
            return
        item = self.tree.items[index]
        self._board.route.update(item=index)
        if item.is_group:
            below = {inner for inner in self._opened if self._inside(inner, index)}
            self._open(self._opened - below if index in self._opened else self._opened | {index}, index)

    def _row_chosen(self, item: str) -> None:
        if item:
            self._tapped(int(item))

    def _fit(self) -> None:
        if self.scene is not None:
            self.graph.fit(self.scene)

    def _inside(self, inner: int, outer: int) -> bool:
        assert self.tree is not None
        return inner == outer or any(
            item.index == outer for item in self.tree.ancestors(self.tree.items[inner])
        )

    def _chosen(self) -> int | None:
        chosen = self._board.route.number("item")
        return (
            chosen if self.tree is not None and chosen is not None and chosen < len(self.tree.items) else None
        )

    def _marked(self) -> frozenset[int]:
        """Visible boxes with a match of the search inside."""
        pattern = self._board.route.get("q")
        if self.tree is None or not pattern:
            return frozenset()
        try:
            nodes = self.tree.matches(pattern)
        except re.error:
            return frozenset()
        found: set[int] = set()
        for node in nodes:
            item = self.tree.item_of_node(node.id)
            found |= {item.index, *(outer.index for outer in self.tree.ancestors(item))}
        return frozenset(found)

    def _searched(self) -> None:
        self._match = 0
        self._board.route.update(q=self.search.value.strip())
        self._say_matches()

    def _say_matches(self) -> None:
        pattern = self.search.value.strip()
        self.next.disabled = True
        if self.tree is None or not pattern:
            show_html(self.message, "")
            return
        try:
            count = len(self.tree.matches(pattern))
        except re.error as error:
            show_html(self.message, notice(f"{pattern!r} is not a regular expression: {error}"))
            return
        self.next.disabled = count == 0
        text = f"{count} of {len(self.tree.srg.nodes)} ops match; boxes that hold one have an orange border"
        show_html(self.message, notice(text, "Next match opens the way to each of them" if count else ""))

    def _next_match(self) -> None:
        assert self.tree is not None
        nodes = self.tree.matches(self._board.route.get("q"))
        item = self.tree.item_of_node(nodes[self._match % len(nodes)].id)
        self._match += 1
        self._board.route.update(item=item.index)
        way = {outer.index for outer in self.tree.ancestors(item)}
        if len(self.tree.visible(self._opened | way)) > VISIBLE_MAX:
            self._open(frozenset(way), item.index)
        else:
            self._open(self._opened | way, item.index)

    def _describe(self) -> None:
        assert self.tree is not None
        assert self.scene is not None
        chosen = self._chosen()
        show_html(self.details, details_html(self.tree, self.tree.items[chosen]) if chosen else _HINT)
        show_html(self._heading, heading("Graph of the cell", sentence(self.tree, self.scene)))
        if self.as_table.value:
            self.table.show(_table_rows(self.tree, self.scene))

    def _table_toggled(self) -> None:
        self.table.visible = self.as_table.value
        self._figure.visible = not self.as_table.value
        if self.tree is not None and self.scene is not None:
            self._describe()

    def _json(self) -> StringIO:
        document = to_json(self.tree.srg) if self.tree is not None else {}
        return StringIO(json.dumps(document))


_CHOOSE_OTHER = (
    "<p style='text-align:center'><a href='?page=overview&amp;show=all'>Choose another cell</a></p>"
)


def _numbers(text: str) -> frozenset[int]:
    """Numbers of a comma-separated list; anything else in it is ignored."""
    return frozenset(int(part) for part in text.split(",") if part.isascii() and part.isdigit())


def _table_rows(tree: Tree, scene: Scene) -> list[dict[str, object]]:
    rows = []
    for frame in scene.frames:
        item, totals = frame.item, tree.totals(frame.item)
        mark = "" if not item.is_group else "▾ " if frame.opened else "▸ "
        rows.append(
            {
                "id": str(item.index),
                "name": f"{mark}{item.name}",
                "path": item.path,
                "phase": ", ".join(totals.phases),
                "ops": totals.ops,
                "flops": {"text": format_flops(totals.flops), "sort": totals.flops},
                "written": {"text": format_bytes(totals.bytes_written), "sort": totals.bytes_written},
            }
        )
    return rows
