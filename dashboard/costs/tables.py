"""The cost model as cards, and as rows of tables and CSV."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from djinn_lab.client.cost_sentences import estimator_sentences, measuring_words
from djinn_lab.dashboard.costs.curve_chart import CurvePoint, with_power, work_unit
from djinn_lab.dashboard.costs.runs_chart import SOURCES, off_text, percentile
from djinn_lab.dashboard.csv_text import csv_text
from djinn_lab.dashboard.widgets.table_cells import columns, number_cell
from djinn_lab.jobs.cost_drift import FamilyDrift
from djinn_lab.protocol.rest.costs import ComparedRun, CostView, DeviceCosts
from djinn_lab.units import counted, format_clock, format_error, format_seconds

RUNS_SHOWN_MAX = 100
RUN_COLUMNS = columns(
    ("at", "Ended", "number"),
    ("cell", "Cell", "mono"),
    ("device", "Device", "short"),
    ("source", "Predicted from", "short"),
    ("predicted", "Predicted", "number"),
    ("measured", "Measured", "number"),
    ("off", "Off by", "number"),
    ("program", "Program", "mono"),
)
PROGRAM_COLUMNS = columns(
    ("program", "Program", "mono"),
    ("cell", "Newest cell", "mono"),
    ("devices", "Devices", "short"),
    ("runs", "Runs", "number"),
    ("error", "Off by, median", "number"),
    ("p90", "Off by, p90", "number"),
    ("measured", "Median run", "number"),
)
FAMILY_COLUMNS = columns(
    ("family", "Family of ops", "mono"),
    ("devices", "Devices", "short"),
    ("runs", "Runs", "number"),
    ("ratio", "Runs took, in the median", "number"),
    ("half", "Half of them", "number"),
    ("factor", "Predictions count", "number"),
    ("error", "Off by, median", "number"),
    ("p90", "Off by, p90", "number"),
)
CHANGE_COLUMNS = columns(
    ("at", "When", "number"),
    ("devices", "Devices", "short"),
    ("what", "What", "pill"),
    ("detail", "Detail", "text"),
)
CURVE_COLUMNS = columns(
    ("dtype", "Dtype", "mono"),
    ("lane", "Size that sets the rate", "number"),
    ("work", "Work of a call", "number"),
    ("seconds", "Takes", "number"),
    ("rate", "Rate", "number"),
)
_CHANGE_COLOURS = {"measured": "#009E73", "drifted": "#D55E00", "corrected": "#E69F00"}


def device_cards(view: CostView, stale: bool) -> str:
    """Return a card for each device, as HTML."""
    cards = "".join(device_card(device, device.device, device.kind) for device in view.devices)
    return f"<div class='cards{' stale' if stale else ''}'>{cards}</div>"


def device_card(device: DeviceCosts, title: str, detail: str) -> str:
    """Return the card of one device: what it was measured to do, and when. ``title`` and ``detail``: at its
    top."""
    state, colour = _state(device)
    rows = [
        ("Matrix products, as runs were", _rate(device.flops_per_s, "FLOP/s")),
        ("Memory", _rate(device.memory_bytes_per_s, "B/s")),
        ("Link to the host", _rate(device.link_bytes_per_s, "B/s")),
        ("An op that does nothing", "–" if device.op_s is None else format_seconds(device.op_s)),
        ("Measured", _measured(device)),
    ]
    body = "".join(
        f"<div class='row'><span>{name}</span><span>{escape(text)}</span></div>" for name, text in rows
    )
    return (
        f"<div class='card' aria-label='Costs of {escape(device.device)}'><div class='head'>"
        f"<b>{escape(title)}</b><span class='name'>{escape(detail)}</span>"
        f"<span class='pill' style='--pill:{colour}'>{state}</span></div>{body}</div>"
    )


def _state(device: DeviceCosts) -> tuple[str, str]:
    if device.measuring:
        return "being measured", "#56B4E9"
    if not device.measured:
        return "not measured", "#7F8C99"
    if device.drift == "asked":
        return "measured again soon", "#E69F00"
    return "measured", "#009E73"


def _measured(device: DeviceCosts) -> str:
    if not device.measured:
        return f"{device.device} {measuring_words(device)}"
    if device.measured_at is None:
        return "by an earlier pool"
    return (
        f"{format_clock(device.measured_at)}, {counted(device.measurements, 'time')} since the pool started"
    )


def _rate(value: float | None, unit: str) -> str:
    return "–" if value is None else with_power(value, unit)


def model_sentences(view: CostView) -> list[str]:
    """Say which estimator predicts, and what was refused of an installed one."""
    if view.estimator is None:
        return ["The built-in cost model predicts: measured curves, corrected by what runs taught."]
    return list(estimator_sentences(view.estimator))


def run_rows(runs: Sequence[ComparedRun], cells: Mapping[str, str]) -> list[dict[str, object]]:
    """Return the newest runs, newest first. ``cells``: names of cells by job."""
    return [
        {
            "id": f"{run.job} {run.at}",
            "at": number_cell(run.at, format_clock),
            "cell": cells.get(run.job, run.job[:8]),
            "device": run.device,
            "source": SOURCES[run.source],
            "predicted": number_cell(run.predicted_s, format_seconds),
            "measured": number_cell(run.measured_s, format_seconds),
            "off": {"text": off_text(run), "sort": run.error},
            "program": run.program,
        }
        for run in reversed(runs[-RUNS_SHOWN_MAX:])
    ]


def program_rows(runs: Sequence[ComparedRun], cells: Mapping[str, str]) -> list[dict[str, object]]:
    """Return a row for each program, the worst predicted one first."""
    by_program: defaultdict[str, list[ComparedRun]] = defaultdict(list)
    for run in runs:
        by_program[run.program].append(run)
    rows: list[tuple[float, dict[str, object]]] = []
    for program, own in by_program.items():
        errors = [run.error for run in own]
        row: dict[str, object] = {
            "id": program or "unnamed",
            "program": program,
            "cell": cells.get(own[-1].job, own[-1].job[:8]),
            "devices": ", ".join(sorted({run.device for run in own})),
            "runs": len(own),
            "error": number_cell(median(errors), format_error),
            "p90": number_cell(percentile(errors, 0.9), format_error),
            "measured": number_cell(median(run.measured_s for run in own), format_seconds),
        }
        rows.append((median(errors), row))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def family_rows(view: CostView) -> list[dict[str, object]]:
    """Return a row for each family and kind of device, the least certain first."""
    devices = devices_by_kind(view)
    known = {device.kind: device.families for device in view.devices}
    rows = [(one, kind) for kind, families in known.items() for one in families]
    return [_family_row(one, kind, devices) for one, kind in sorted(rows, key=lambda row: -row[0].error_p90)]


def _family_row(one: FamilyDrift, kind: str, devices: Mapping[str, str]) -> dict[str, object]:
    return {
        "id": f"{kind} {one.family}",
        "family": one.family,
        "devices": devices[kind],
        "runs": one.runs,
        "ratio": number_cell(one.ratio, _times),
        "half": number_cell(one.high - one.low, lambda _: f"{one.low:.3g} to {one.high:.3g} × the curve"),
        "factor": number_cell(one.factor, _times),
        "error": number_cell(one.error, format_error),
        "p90": number_cell(one.error_p90, format_error),
    }


def _times(ratio: float) -> str:
    return f"{ratio:.3g} × the curve"


def change_rows(view: CostView) -> list[dict[str, object]]:
    """Return measurements, drifts and corrections, newest first."""
    devices = devices_by_kind(view)
    return [
        {
            "id": f"{number}",
            "at": number_cell(change.at, format_clock),
            "devices": devices.get(change.kind, change.kind),
            "what": {"text": change.what, "colour": _CHANGE_COLOURS[change.what]},
            "detail": change.detail,
        }
        for number, change in sorted(enumerate(view.changes), reverse=True)
    ]


def devices_by_kind(view: CostView) -> dict[str, str]:
    """Return the names of the devices that share curves, by their kind."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for device in view.devices:
        names[device.kind].append(device.device)
    return {kind: ", ".join(devices) for kind, devices in names.items()}


def curve_rows(points: Sequence[CurvePoint], family: str) -> list[dict[str, object]]:
    """Return a row for each probe of a family."""
    unit = work_unit(family)
    return [
        {
            "id": f"{point.dtype} {point.lane} {point.work}",
            "dtype": point.dtype,
            "lane": number_cell(point.lane, "{:g}".format),
            "work": number_cell(point.work, lambda value: with_power(value, unit)),
            "seconds": number_cell(point.seconds, format_seconds),
            "rate": number_cell(point.rate, lambda value: f"{with_power(value, unit)}/s"),
        }
        for point in points
    ]


def runs_csv(view: CostView | None) -> str:
    """Return every compared run with every field as CSV, oldest first."""
    fields = [*ComparedRun.__struct_fields__, "error"]
    runs = view.runs if view is not None else ()
    return csv_text(fields, [[getattr(run, field) for field in fields] for run in runs])


def curves_csv(view: CostView | None) -> str:
    """Return every probe of every family and kind of device as CSV."""
    rows = [
        [kind, *name.partition("/")[::2], curve.lane, work, seconds]
        for kind, curves in (view.curves if view is not None else {}).items()
        for name, lanes in sorted(curves.families.items())
        for curve in lanes
        for work, seconds in zip(curve.work, curve.seconds, strict=True)
    ]
    return csv_text(["kind", "family", "dtype", "lane", "work", "seconds"], rows)
