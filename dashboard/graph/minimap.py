"""The whole graph in a small figure, with a frame around what the large one shows; a click moves it."""

from __future__ import annotations

from bokeh.models import BoxAnnotation, ColumnDataSource, CustomJS, Range1d
from bokeh.models.glyphs import Rect, Segment
from bokeh.plotting import figure

from djinn_lab.dashboard.widgets.components import STATIC
from djinn_lab.dashboard.widgets.theme import Look, new_figure

WIDTH, HEIGHT = 330, 150
"""In pixels."""
_MOVE = """
const half_x = (fig.x_range.end - fig.x_range.start) / 2, half_y = (fig.y_range.start - fig.y_range.end) / 2;
fig.x_range.setv({ start: cb_obj.x - half_x, end: cb_obj.x + half_x });
fig.y_range.setv({ start: cb_obj.y + half_y, end: cb_obj.y - half_y });
"""


class MiniMap:
    """A small figure of the same boxes as ``plot``, whose tags say how large the whole drawing is. Everything
    that it does happens in the browser."""

    def __init__(
        self,
        look: Look,
        plot: figure,
        boxes: ColumnDataSource,
        containers: ColumnDataSource,
        links: ColumnDataSource,
    ) -> None:
        self.figure = new_figure(
            look, height=HEIGHT, x_range=Range1d(0, 1000), y_range=Range1d(600, 0), tools="", name="minimap"
        )
        self.figure.update(sizing_mode="fixed", width=WIDTH)
        self.figure.outline_line_color = look.grid
        self.figure.toolbar_location = None
        self.figure.axis.visible = False
        self.figure.grid.visible = False
        self.figure.min_border = 2
        self._add_boxes(containers, look.box, look.grid)
        curves = Segment(x0="x0", y0="y0", x1="x1", y1="y1", line_color=look.edge, line_width=0.7)
        self.figure.add_glyph(links, curves)
        self._add_boxes(boxes, "fill", "line")
        self.view = BoxAnnotation(
            left=0, right=1, top=0, bottom=1, fill_alpha=0.08, fill_color=look.text, line_color=look.text
        )
        self.figure.add_layout(self.view)
        self._follow(plot)
        move = CustomJS(args={"fig": plot}, code=_MOVE)
        for event in ("tap", "panstart", "pan"):
            self.figure.js_on_event(event, move)

    def _add_boxes(self, source: ColumnDataSource, fill: str, line: str) -> None:
        box = Rect(
            x="x", y="y", width="width", height="height", fill_color=fill, line_color=line, line_width=0.7
        )
        self.figure.add_glyph(source, box)

    def _follow(self, plot: figure) -> None:
        arguments = {"fig": plot, "map": self.figure, "view": self.view}
        follow = CustomJS(args=arguments, code=(STATIC / "minimap.js").read_text())
        for name in ("start", "end"):
            plot.x_range.js_on_change(name, follow)
            plot.y_range.js_on_change(name, follow)
        plot.js_on_change("tags", follow)
        for name in ("inner_width", "inner_height"):
            self.figure.js_on_change(name, follow)
