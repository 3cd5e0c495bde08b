"""The drawing of a folded graph in Bokeh: sources, glyphs, taps."""

from __future__ import annotations

from collections.abc import Callable

from bokeh.models import ColumnDataSource, CustomJS, HoverTool, Range1d, TapTool, WheelZoomTool
from bokeh.models.glyphs import Bezier, Rect, Text
from bokeh.plotting import figure

from djinn_lab.dashboard.graph.folding import Tree
from djinn_lab.dashboard.graph.minimap import MiniMap
from djinn_lab.dashboard.graph.scene import (
    BOX_COLUMNS,
    Scene,
    box_columns,
    container_columns,
    count_columns,
    link_columns,
)
from djinn_lab.dashboard.graph.shading import Shading
from djinn_lab.dashboard.widgets.components import STATIC
from djinn_lab.dashboard.widgets.theme import Look, blend, new_figure

_HOVER = """
<div style="font:12px sans-serif;max-width:380px;overflow-wrap:anywhere"><b>@label</b><br>@path<br>
@what, @phases, @cell_line<br>@flops; @bytes<br>@figure</div>
"""
_COUNT_HOVER = "<div style='font:12px sans-serif;max-width:380px;overflow-wrap:anywhere'>@what</div>"


class GraphView:
    """Draws a scene in Bokeh. ``on_tap`` is called with the item that was clicked."""

    def __init__(self, look: Look, on_tap: Callable[[int], None]) -> None:
        self._look = look
        self._serial = 0
        empty = Scene([], [], 0.0, 0.0)
        self.boxes = ColumnDataSource({name: [] for name in BOX_COLUMNS})
        self.containers = ColumnDataSource(container_columns(empty, look))
        self.links = ColumnDataSource(link_columns(empty, backward=False))
        self.back_links = ColumnDataSource(link_columns(empty, backward=True))
        self.counts = ColumnDataSource(count_columns(empty, ()))
        self.picture = ColumnDataSource({"svg": [""], "serial": [0]})
        self.figure = self._new_figure()
        self.minimap = MiniMap(look, self.figure, self.boxes, self.containers, self.links)
        for source in (self.boxes, self.containers):
            source.selected.on_change("indices", self._tapped(source, on_tap))

    def show(
        self,
        tree: Tree,
        scene: Scene,
        shading: Shading,
        marked: frozenset[int],
        chosen: int | None,
        focus: int | None = None,
    ) -> None:
        """Draw the scene. ``focus``: an item to bring into view at the present zoom; None shows the whole."""
        self.paint(tree, scene, shading, marked, chosen)
        self.containers.data = container_columns(scene, self._look)
        curves = [link_columns(scene, backward=backward) for backward in (False, True)]
        self.links.data, self.back_links.data = curves
        self.counts.data = count_columns(scene, curves)
        spot = next(((frame.x, frame.y) for frame in scene.frames if frame.item.index == focus), None)
        self.fit(scene, spot)

    def paint(
        self, tree: Tree, scene: Scene, shading: Shading, marked: frozenset[int], chosen: int | None
    ) -> None:
        """Draw the boxes alone: their colours, or what is marked or chosen, changed."""
        self.boxes.data = box_columns(tree, scene, self._look, shading, marked, chosen)

    def fit(self, scene: Scene, spot: tuple[float, float] | None = None) -> None:
        """Ask the browser to bring the whole drawing, or ``spot``, into view."""
        self._serial += 1
        x, y = spot or (None, None)
        self.figure.tags = [scene.width, scene.height, self._serial, x, y]

    def save_png(self, svg: str) -> None:
        """Have the browser save a picture as PNG."""
        self._serial += 1
        self.picture.data = {"svg": [svg], "serial": [self._serial]}

    def _tapped(self, source: ColumnDataSource, on_tap: Callable[[int], None]) -> Callable[..., None]:
        def changed(attribute: str, old: list[int], new: list[int]) -> None:
            if new:
                item = source.data["item"][new[-1]]
                source.selected.indices = []
                on_tap(int(item))

        return changed

    def _new_figure(self) -> figure:
        plot = new_figure(
            self._look,
            height=640,
            x_range=Range1d(0, 1000),
            y_range=Range1d(600, 0),
            tools="pan,save",
            tags=[0, 0, 0, None, None],
        )
        plot.axis.visible = False
        plot.grid.visible = False
        plot.min_border = 4
        zoom = WheelZoomTool()
        plot.add_tools(zoom)
        plot.toolbar.active_scroll = zoom
        header, label, sublabel, count = self._add_glyphs(plot)
        script = (STATIC / "fit_graph.js").read_text()
        fit = CustomJS(
            args={
                "fig": plot,
                "header": header,
                "label": label,
                "sublabel": sublabel,
                "count": count,
                "picture": self.picture,  # unused: brings it to the browser
            },
            code=script,
        )
        save = CustomJS(args={"source": self.picture}, code=(STATIC / "picture_saver.js").read_text())
        self.picture.js_on_change("data", save)
        plot.x_range.js_on_change("start", fit)
        for name in ("inner_width", "inner_height", "tags"):
            plot.js_on_change(name, fit)
        return plot

    def _add_glyphs(self, plot: figure) -> tuple[Text, Text, Text, Text]:
        look = self._look
        plot.add_glyph(
            self.containers,
            Rect(
                x="x",
                y="y",
                width="width",
                height="height",
                fill_color=look.box,
                fill_alpha=0.55,
                line_color=look.grid,
                line_width=1.2,
                border_radius=8,
            ),
        )
        headers = plot.add_glyph(
            self.containers,
            Rect(x="x", y="header_y", width="width", height="header_height", fill_alpha=0.0, line_alpha=0.0),
        )
        for source, dash in ((self.links, "solid"), (self.back_links, "dashed")):
            curve = Bezier(
                x0="x0",
                y0="y0",
                x1="x1",
                y1="y1",
                cx0="cx0",
                cy0="cy0",
                cx1="cx1",
                cy1="cy1",
                line_color=look.edge,
                line_width="thickness",
                line_alpha=0.75,
                line_dash=dash,
            )
            plot.add_glyph(source, curve)
        count = self._add_counts(plot)
        boxes = plot.add_glyph(
            self.boxes,
            Rect(
                x="x",
                y="y",
                width="width",
                height="height",
                fill_color="fill",
                line_color="line",
                line_width="line_width",
                border_radius=6,
            ),
        )
        header = self._text(plot, self.containers, "label_x", "header_y", "label", "left", look.muted, "bold")
        label = self._text(plot, self.boxes, "x", "label_y", "label", "center", look.text, "normal")
        quiet = blend(look.text, look.surface, 0.75)
        sublabel = self._text(plot, self.boxes, "x", "sublabel_y", "sublabel", "center", quiet, "normal")
        for renderer in (headers, boxes):
            renderer.nonselection_glyph = None
            renderer.selection_glyph = None
        plot.add_tools(TapTool(renderers=[headers, boxes]), HoverTool(renderers=[boxes], tooltips=_HOVER))
        return header, label, sublabel, count

    def _add_counts(self, plot: figure) -> Text:
        """Draw how many edges a link stands for, below the boxes."""
        look = self._look
        back = Rect(
            x="x",
            y="y",
            width="width",
            height="height",
            fill_color=look.surface,
            line_color=look.edge,
            line_width=0.8,
            border_radius=7,
        )
        renderer = plot.add_glyph(self.counts, back)
        plot.add_tools(HoverTool(renderers=[renderer], tooltips=_COUNT_HOVER))
        return self._text(plot, self.counts, "x", "y", "count", "center", look.muted, "normal")

    @staticmethod
    def _text(
        plot: figure, source: ColumnDataSource, x: str, y: str, text: str, align: str, colour: str, style: str
    ) -> Text:
        glyph = Text(
            x=x,
            y=y,
            text=text,
            text_align=align,
            text_baseline="middle",
            text_color=colour,
            text_font_size="12px",
            text_font_style=style,
        )
        plot.add_glyph(source, glyph)
        return glyph
