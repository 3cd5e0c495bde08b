"""SRG: the graph of one cell, folded by module, with search and details."""

from __future__ import annotations

import json
import re
from io import BytesIO, StringIO

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.graph.colouring import Colouring
from djinn_lab.dashboard.graph.details import details_html
from djinn_lab.dashboard.graph.folding import VISIBLE_MAX, Tree
from djinn_lab.dashboard.graph.picture import graph_svg
from djinn_lab.dashboard.graph.scene import Scene, sentence
from djinn_lab.dashboard.graph.shading import Shading
from djinn_lab.dashboard.graph.store import GraphStore
from djinn_lab.dashboard.graph.tables import BOX_TABLE_COLUMNS, box_rows
from djinn_lab.dashboard.graph.view import GraphView
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.chooser import CellPart, JobChooser, graph_version
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button, control_bar, download, text_input, toggle
from djinn_lab.dashboard.widgets.panes import (
    CHOOSE_OTHER,
    NO_JOBS,
    empty_state,
    heading,
    html_pane,
    no_pool,
    notice,
    show_html,
)
from djinn_lab.errors import DjinnError
from djinn_lab.srg.export import to_json

_HINT = (
    "<p class='muted'>Click a folded group (▸) to open it, its header (▾) to fold it, "
    "an op to see its fields.</p>"
)
_STACKED = "@media (max-width: 800px) { :host { display: block !important; } }"
"""Below that width the details of an op come below the graph."""


class SrgPage:
    """The page Graph; the address holds job, segment, open groups (``open``), chosen box (``item``), search
    (``q``), colours (``colour``) and the other run (``diff``)."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._store: GraphStore = board.hub.keep("graphs", GraphStore)
        self.chooser = JobChooser(board)
        self.tree: Tree | None = None
        self.scene: Scene | None = None
        self._opening = False
        self._found: tuple[Tree, str, frozenset[int]] | None = None
        self._wanted: tuple[str, CellPart, int] | None = None
        self._drawn: tuple[str, CellPart, int] | None = None
        self.colouring = Colouring(board, self._store, self._recoloured)
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
        self.save = download("JSON", "srg.json", self._json, align="end")
        self.svg = download("SVG", "graph.svg", self._svg, align="end")
        self.png = button("PNG", align="end")
        self._match = 0
        soon = self._board.background.soon
        self.search.param.watch(lambda event: soon(self._searched), "value")
        self.next.on_click(lambda event: soon(self._next_match))
        self.fold.on_click(lambda event: soon(lambda: self._open(frozenset())))
        self.unfold.on_click(lambda event: soon(self._open_level))
        self.fit.on_click(lambda event: soon(self._fit))
        self.png.on_click(lambda event: soon(lambda: self.graph.save_png(self._picture())))
        self.as_table.param.watch(lambda event: soon(self._table_toggled), "value")

    def _build_view(self) -> None:
        self._heading = html_pane(margin=(10, 0, 6, 0))
        self.message = html_pane(margin=(0, 0, 6, 0))
        self.details = html_pane(_HINT, margin=(0, 0, 0, 16), width=330, sizing_mode=None)
        self.table = LiveTable(
            columns=BOX_TABLE_COLUMNS,
            selectable=True,
            label="Boxes of the graph",
            visible=False,
            sizing_mode="stretch_width",
        )
        self.table.param.watch(
            lambda event: self._board.background.soon(lambda: self._row_chosen(event.new)), "selected"
        )
        self._figure = pn.pane.Bokeh(self.graph.figure, sizing_mode="stretch_width", margin=0)
        self._minimap = pn.pane.Bokeh(self.graph.minimap.figure, margin=(0, 0, 10, 16))
        fields = pn.Column(self.details, width=350, margin=0, scroll=True, max_height=480)
        side = pn.Column(self._minimap, fields, width=350, margin=0)
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
            self.svg,
            self.png,
            self.save,
        )
        self._live = pn.Column(
            self.chooser.view,
            bar,
            self.colouring.bar,
            self._heading,
            self.colouring.legend,
            self.colouring.message,
            self.message,
            body,
            self.colouring.compared,
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
        wanted = (job.job, segment, graph_version(job, segment))
        if wanted == self._wanted:
            if self.tree is not None and self._drawn == wanted:
                self.colouring.follow(snapshot, job, segment, self.tree)
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

    def _load(self, wanted: tuple[str, CellPart, int], first: bool) -> None:
        hub, store = self._board.hub, self._store
        saved = _numbers(self._board.route.get("open"))

        def work() -> tuple[Tree, Scene, frozenset[int]]:
            tree = store.tree(hub.reader(), *wanted)
            opened = (
                frozenset(number for number in saved if number < len(tree.items)) if saved else tree.start()
            )
            return tree, store.scene(tree, opened), opened

        def done(result: tuple[Tree, Scene, frozenset[int]]) -> None:
            self.tree, scene, self._opened = result
            self._drawn = wanted
            self.colouring.begin(self.tree)
            self._show_only("")
            self._show_scene(scene, None)
            self._say_matches()
            self._find_patterns(self.tree)

        self._board.background.run("graph", work, done, self._failed)

    def _find_patterns(self, tree: Tree) -> None:
        """Look for patterns, which details name once they are known."""

        def done(kinds: object) -> None:
            if self.tree is tree:
                self._describe()

        self._board.background.run("patterns", lambda: tree.kinds_of_node, done, self._failed)

    def _failed(self, error: DjinnError) -> None:
        self.tree, self._opening = None, False
        text = empty_state("This cell has no graph to show", f"{error.message} {error.advice}")
        self._show_only(text + CHOOSE_OTHER)
        self._live.visible = False

    def _show_scene(self, scene: Scene, focus: int | None) -> None:
        assert self.tree is not None
        self.scene, self._opening = scene, False
        self.graph.show(self.tree, scene, self._shading, self._marked(), self._chosen(), focus)
        self._describe()

    @property
    def _shading(self) -> Shading:
        assert self.colouring.shading is not None
        return self.colouring.shading

    def _recoloured(self) -> None:
        if self.tree is not None and self.scene is not None:
            self.graph.paint(self.tree, self.scene, self._shading, self._marked(), self._chosen())
            self._describe()

    def _draw(self) -> None:
        """Redraw after the address changed: other groups open, or another box chosen."""
        assert self.tree is not None
        saved = self._board.route.get("open")
        opened = _numbers(saved) if saved else self._opened
        if opened != self._opened and saved:
            self._open(opened)
        elif not self._opening:
            self._recoloured()

    def _open(self, groups: frozenset[int], focus: int | None = None) -> None:
        """Expand exactly ``groups``, unless too many boxes would show. ``focus``: the item to choose and
        bring into view."""
        if self.tree is None:
            return
        tree, store = self.tree, self._store
        count = len(tree.visible(groups))
        if count > VISIBLE_MAX:
            text = f"That would show {count} boxes; at most {VISIBLE_MAX} stay readable"
            show_html(self.message, notice(text, "Fold another group first, or search for an op"))
            self._board.route.update(item=focus or self._board.route.get("item"))
            return
        show_html(self.message, "")
        self._opened, self._opening = groups, True

        def done(scene: Scene) -> None:
            self._show_scene(scene, focus)

        opened = ",".join(map(str, sorted(groups))) or "0"
        self._board.route.update(open=opened, item=focus or self._board.route.get("item"))
        self._board.background.run("scene", lambda: store.scene(tree, groups), done, self._failed)

    def _open_level(self) -> None:
        if self.tree is None:
            return
        groups = [item for item in self.tree.visible(self._opened) if item.is_group]
        self._open(self._opened | {item.index for item in groups})

    def _tapped(self, index: int) -> None:
        if self.tree is None or index >= len(self.tree.items):
            return
        if not self.tree.items[index].is_group:
            self._board.route.update(item=index)
        else:
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
        if self._found is not None and self._found[:2] == (self.tree, pattern):
            return self._found[2]
        try:
            nodes = self.tree.matches(pattern)
        except re.error:
            return frozenset()
        found: set[int] = set()
        for node in nodes:
            item = self.tree.item_of_node(node.id)
            found |= {item.index, *(outer.index for outer in self.tree.ancestors(item))}
        self._found = self.tree, pattern, frozenset(found)
        return self._found[2]

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
        way = {outer.index for outer in self.tree.ancestors(item)}
        if len(self.tree.visible(self._opened | way)) > VISIBLE_MAX:
            self._open(frozenset(way), item.index)
        else:
            self._open(self._opened | way, item.index)

    def _describe(self) -> None:
        assert self.tree is not None
        assert self.scene is not None
        chosen = self._chosen()
        fields = _HINT
        if chosen:
            item = self.tree.items[chosen]
            fields = details_html(self.tree, item, self.colouring.figure_of(item))
        show_html(self.details, fields)
        show_html(self._heading, heading("Graph of the cell", sentence(self.tree, self.scene)))
        if self.as_table.value:
            self.table.show(box_rows(self.tree, self.scene, self._shading))

    def _table_toggled(self) -> None:
        self.table.visible = self.as_table.value
        self._figure.visible = self._minimap.visible = not self.as_table.value
        if self.tree is not None and self.scene is not None:
            self._describe()

    def _json(self) -> StringIO:
        document = to_json(self.tree.srg) if self.tree is not None else {}
        return StringIO(json.dumps(document))

    def _picture(self) -> str:
        if self.tree is None or self.scene is None or self._drawn is None:
            return ""
        title = f"Graph of cell job {self._drawn[0][:8]}. {sentence(self.tree, self.scene)}"
        return graph_svg(self.tree, self.scene, self._shading, self._board.look, title)

    def _svg(self) -> BytesIO:
        return BytesIO(self._picture().encode())


def _numbers(text: str) -> frozenset[int]:
    """Numbers of a comma-separated list; anything else in it is ignored."""
    return frozenset(int(part) for part in text.split(",") if part.isascii() and part.isdigit())
