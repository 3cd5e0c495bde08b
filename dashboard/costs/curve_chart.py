"""Measured rates of a family of ops over the work of a call, a line for each dtype and lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

import panel as pn
from bokeh.models import ColumnDataSource, CustomJSTickFormatter, HoverTool, Range1d, Span
from bokeh.plotting import figure

from djinn_lab.dashboard.widgets.theme import BAD_COLOUR, DEVICE_COLOURS, Look, new_figure
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.families import COMPUTE, UNIT_BYTES
from djinn_lab.units import format_seconds

POWERS = ("", "k", "M", "G", "T", "P")
_POWERS_JS = f"const names = {list(POWERS)!r};" + (
    "const power = tick >= 1 ? Math.min(5, Math.floor(Math.log10(tick) / 3 + 1e-9)) : 0;"
    "return `${+(tick / 1000 ** power).toPrecision(3)} ${names[power]}`;"
)
NAMES = {"FLOP": "FLOP", "B": "bytes", "elements": "elements"}
"""Of units, on axes."""
OTHER_COLOUR = "#7F8C99"
LABEL_SHARE, LABEL_FACTOR = 0.07, 2.0
"""Labels at ends of lines overlap within this share of the chart's height, and this factor of work."""


class CurvePoint(NamedTuple):
    """A probe: ``seconds`` of a call with so much ``work``. ``lane``: such as the shorter side of a
    product."""

    dtype: str
    lane: float
    work: float
    seconds: float

    @property
    def rate(self) -> float:
        """Return work per second."""
        return self.work / self.seconds


def work_unit(family: str) -> str:
    """Return what the work of a family is counted in."""
    if family in COMPUTE:
        return "FLOP"
    return "elements" if family in UNIT_BYTES and family != "pointwise" else "B"


def with_power(value: float, unit: str) -> str:
    """``1.2e10`` FLOP -> ``"12 GFLOP"``, ``32768`` elements -> ``"32.8 k elements"``."""
    power = 0
    while value >= 1000 and power < len(POWERS) - 1:
        value, power = value / 1000, power + 1
    apart = " " if power and unit.startswith("elements") else ""
    return f"{value:.3g} {POWERS[power]}{apart}{unit}"


def families_of(curves: DeviceCurves) -> tuple[str, ...]:
    """Return the names of the measured families."""
    return tuple(sorted({name.partition("/")[0] for name in curves.families}))


def points_of(curves: DeviceCurves, family: str) -> list[CurvePoint]:
    """Return every probe of a family, by dtype, lane and work."""
    return list(_points(curves, family))


def _points(curves: DeviceCurves, family: str) -> Iterator[CurvePoint]:
    for name, lanes in sorted(curves.families.items()):
        found, _, dtype = name.partition("/")
        if found == family:
            for curve in lanes:
                for work, seconds in zip(curve.work, curve.seconds, strict=True):
                    yield CurvePoint(dtype, curve.lane, work, seconds)


def lane_words(family: str) -> str:
    """Say what distinguishes the lines of one dtype (:mod:`djinn_lab.srg.families`)."""
    if family.startswith("matmul"):
        return "the shorter side of the product"
    return "the width of a row" if "softmax" in family else "the size that sets the rate"


def dtype_colours(points: Sequence[CurvePoint]) -> dict[str, str]:
    """Return a colour for each dtype, float32 the first."""
    dtypes = sorted({point.dtype for point in points}, key=lambda dtype: (dtype != "float32", dtype))
    more = [OTHER_COLOUR] * len(dtypes)
    return dict(zip(dtypes, (*DEVICE_COLOURS, *more), strict=False))


def curve_sentence(points: Sequence[CurvePoint], family: str, device: str, factor: float = 1.0) -> str:
    """Summarise a chart in a sentence. ``factor``: by which runs corrected the family's predictions."""
    if not points:
        return f"Ops of the family {family} were not measured on {device}."
    best = max(points, key=lambda point: point.rate)
    unit = work_unit(family)
    corrected = "" if factor == 1.0 else f" Runs took {factor:.2f} times as long, which predictions count."
    if len({point.lane for point in points}) > 1:
        corrected += f" The number at a line is {lane_words(family)}."
    return (
        f"{family} on {device}, as measured: {len(points)} probes, at best {with_power(best.rate, unit)}/s "
        f"({best.dtype}, {with_power(best.work, unit)} in {format_seconds(best.seconds)}).{corrected}"
    )


def _together(ends: Sequence[CurvePoint], points: Sequence[CurvePoint]) -> list[list[CurvePoint]]:
    """Group the ends of lines that lie so close to each other that their labels would overlap."""
    rates = [point.rate for point in points]
    near = LABEL_SHARE * log(max(rates, default=1.0) / min(rates, default=1.0))
    groups: list[list[CurvePoint]] = []
    for point in sorted(ends, key=lambda end: end.rate):
        for group in groups:
            beside = abs(log(point.work / group[-1].work)) <= log(LABEL_FACTOR)
            if beside and log(point.rate / group[-1].rate) <= near:
                group.append(point)
                break
        else:
            groups.append([point])
    return [sorted(group, key=lambda end: end.lane) for group in groups]


class CurveChart:
    """Rates over work on two logarithmic axes. ``marked``: a dashed line at a rate of comparison."""

    def __init__(self, look: Look, marked: bool = False) -> None:
        names = ("x", "y", "colour", "dtype", "lane", "work", "took", "rate")
        self.lines = ColumnDataSource({"xs": [], "ys": [], "colour": []})
        self.points = ColumnDataSource({name: [] for name in names})
        self.lanes = ColumnDataSource({"x": [], "y": [], "text": []})
        self.figure = self._new_figure(look)
        self.mark = Span(
            location=1, dimension="width", line_color=BAD_COLOUR, line_dash="dashed", visible=False
        )
        if marked:
            self.figure.add_layout(self.mark)
        self.view = pn.pane.Bokeh(self.figure, sizing_mode="stretch_width", margin=0)

    def _new_figure(self, look: Look) -> figure:
        plot = new_figure(
            look,
            height=260,
            x_axis_type="log",
            y_axis_type="log",
            x_range=Range1d(1, 10),
            y_range=Range1d(1, 10),
            tools="save",
        )
        for axis in (*plot.xaxis, *plot.yaxis):
            axis.formatter = CustomJSTickFormatter(code=_POWERS_JS)
        plot.multi_line("xs", "ys", source=self.lines, line_color="colour", line_width=1.6, line_alpha=0.55)
        drawn = plot.scatter(
            "x", "y", source=self.points, size=7, fill_color="colour", line_color=None, fill_alpha=0.9
        )
        plot.text(
            "x",
            "y",
            text="text",
            source=self.lanes,
            x_offset=6,
            text_baseline="middle",
            text_font_size="11px",
            text_color=look.muted,
        )
        tooltips = [
            ("", "@dtype, @lane"),
            ("a call of", "@work"),
            ("takes", "@took"),
            ("rate", "@rate"),
        ]
        plot.add_tools(HoverTool(renderers=[drawn], tooltips=tooltips))
        return plot

    def show(self, points: Sequence[CurvePoint], family: str, mark: float | None = None) -> None:
        """Draw the family's probes. ``mark``: a rate to compare with, in bytes per second."""
        colours, unit = dtype_colours(points), work_unit(family)
        lines: dict[tuple[str, float], list[CurvePoint]] = {}
        for point in points:
            lines.setdefault((point.dtype, point.lane), []).append(point)
        self.lines.data = {
            "xs": [[point.work for point in line] for line in lines.values()],
            "ys": [[point.rate for point in line] for line in lines.values()],
            "colour": [colours[dtype] for dtype, _ in lines],
        }
        self.points.data = {
            "x": [point.work for point in points],
            "y": [point.rate for point in points],
            "colour": [colours[point.dtype] for point in points],
            "dtype": [point.dtype for point in points],
            "lane": [f"{lane_words(family)} {point.lane:g}" for point in points],
            "work": [with_power(point.work, unit) for point in points],
            "took": [format_seconds(point.seconds) for point in points],
            "rate": [f"{with_power(point.rate, unit)}/s" for point in points],
        }
        ends = [line[-1] for line in lines.values()] if len({lane for _, lane in lines}) > 1 else []
        labels = _together(ends, points)
        self.lanes.data = {
            "x": [max(point.work for point in group) for group in labels],
            "y": [group[0].rate for group in labels],
            "text": [", ".join(dict.fromkeys(f"{point.lane:g}" for point in group)) for group in labels],
        }
        self.mark.update(visible=mark is not None, location=mark or 1)
        self.figure.xaxis.axis_label = f"{NAMES[unit]} of a call"
        self.figure.yaxis.axis_label = f"{NAMES[unit]} per second"
        self._fit(points, mark)

    def _fit(self, points: Sequence[CurvePoint], mark: float | None) -> None:
        if not points:
            return
        rates = [point.rate for point in points] + ([mark] if mark else [])
        works = [point.work for point in points]
        self.figure.x_range.update(
            start=min(works) / 1.6, end=max(works) * (3 if self.lanes.data["x"] else 1.6)
        )
        self.figure.y_range.update(start=min(rates) / 1.6, end=max(rates) * 1.6)
