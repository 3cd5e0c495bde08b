"""``%djinn report --html FILE``: one page about the last cell, in one file that needs no other."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from djinn_lab.client.cell import Cell
from djinn_lab.client.cuts import loops_of_cuts, name_of
from djinn_lab.client.explanation import explain_cell
from djinn_lab.client.report import STAGES, CellReport
from djinn_lab.client.session import Session
from djinn_lab.errors import DjinnError
from djinn_lab.scheduler import ExecutionSchedule
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import STREAMED
from djinn_lab.units import capitalised, counted, format_bytes, format_seconds

STYLE = Path(__file__).with_name("report_page.css")
MODULES_SHOWN = 16
CUTS_SHOWN = 40
MODULE_DEPTH = 3
HERE = ("capture", "upload", "prepare", "receive")
ON_DEVICE = ("dispatch", "load", "run", "fetch")
ON_THE_WAY = ("network", "reconnecting")
STAGE_WORDS = {
    "preceding": "waited for the cell before",
    "capture": "the cell's own Python, with recording",
    "upload": "tensors on their way to the pool",
    "prepare": "building and encoding graphs",
    "network": "messages there and back",
    "reconnecting": "until a pool that was gone answered again",
    "queued": "pending in the queue",
    "restoring": "until its state and a memory grant were there",
    "recovering": "making values again after a worker was lost",
    "preempted": "preempted by another job",
    "dispatch": "from the pool to the worker",
    "load": "values onto the device",
    "run": "ops ran, and the cell waited",
    "fetch": "results off the device",
    "receive": "reading results here",
    "unattributed": "not measured",
}


def report_page(session: Session, cell: Cell) -> str:
    """Return the page. Raises UserError for a cell without torch work."""
    graph, report = cell.graph, cell.report
    sections = [
        ("Time by stage", _stages(report)),
        ("Why it ran where and when it did", _explanation(session, cell)),
        ("Ops by module", _modules(graph)),
        ("Schedule", _schedule(cell)),
        ("Cuts", _cuts(report)),
        ("Code", _code(cell)),
    ]
    title = f"{report.cell} on {report.device or 'the pool'}"
    body = "\n".join(
        f"<section><h2>{html.escape(head)}</h2>{text}</section>" for head, text in sections if text
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)} - Djinn Lab</title>\n<style>\n{STYLE.read_text('utf-8')}</style>\n"
        f"</head>\n<body>\n<main>\n{_head(session, cell, title)}\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(session: Session, cell: Cell, title: str) -> str:
    report = cell.report
    failed = f'<p class="error">{html.escape(report.error)}</p>' if report.error else ""
    written = datetime.now().astimezone().strftime("%d %B %Y, %H:%M")
    parts = [capitalised(report.outcome), f"job {(report.job or '-')[:8]}", f"pool {session.url}", written]
    return (
        f"<header><h1>{html.escape(title)}</h1>"
        f'<p class="under">{html.escape(" · ".join(parts))}</p>{failed}{_figures(report)}</header>'
    )


def _figures(report: CellReport) -> str:
    figures = [
        ("Total", format_seconds(report.total_s), ""),
        ("Device ran", format_seconds(report.run_s), _share(report.run_s, report.total_s)),
        ("Ops", f"{report.ops_run:,}", f"{report.ops_recorded:,} recorded"),
        ("Peak memory", format_bytes(report.peak_bytes), "on the device"),
        ("Sent", format_bytes(report.bytes_up), f"{format_bytes(report.bytes_down)} received"),
        ("Known graphs", f"{report.program_hits} of {report.parts}", "to the pool"),
    ]
    return '<dl class="figures">{}</dl>'.format(
        "".join(
            f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd><dd>{html.escape(under)}</dd></div>"
            for name, value, under in figures
        )
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%} of the total" if whole > 0 else ""


# -------------------------------------------------------------------- stages


def _kind(stage: str) -> str:
    """Return which colour a stage has."""
    if stage in HERE:
        return "here"
    if stage in ON_DEVICE:
        return "device"
    return "way" if stage in ON_THE_WAY else "other" if stage == "unattributed" else "waiting"


def _stages(report: CellReport) -> str:
    seconds = {name: report.stages[name] for name in STAGES if report.stages.get(name, 0) > 0}
    if report.unattributed_s > 0:
        seconds["unattributed"] = report.unattributed_s
    total = sum(seconds.values()) or 1.0
    order = {name: index for index, name in enumerate(seconds)}
    bar = "".join(
        f'<i class="{_kind(name)} tone{order[name] % 3}" style="flex-grow:{part / total:.6f}" '
        f'title="{name}: {format_seconds(part)}"></i>'
        for name, part in seconds.items()
    )
    rows = [
        (
            f'<i class="key {_kind(name)} tone{order[name] % 3}"></i>{name}',
            f'<span class="soft">{html.escape(STAGE_WORDS[name])}</span>',
            format_seconds(part),
            f"{part / total:.1%}",
        )
        for name, part in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    legend = "".join(
        f'<span><i class="key {kind}"></i>{words}</span>'
        for kind, words in (
            ("here", "here"),
            ("waiting", "waiting"),
            ("way", "on the way"),
            ("device", "device"),
        )
    )
    return (
        f'<div class="bar" role="img" aria-label="Time by stage">{bar}</div><p class="legend">{legend}</p>'
        + _table(("Stage", "", "Time", "Share"), rows, numbers=2)
    )


# -------------------------------------------------------------------- why, modules, schedule, cuts


def _explanation(session: Session, cell: Cell) -> str:
    """Say why, and what is special about the run. Its first sentence is the page's head, and cuts and the
    schedule have sections of their own."""
    told = [
        line
        for line in list(explain_cell(session, cell))[1:]
        if not line.startswith(("Schedule: ", "Segment"))
    ]
    if cell.report.compiled:
        told.append(f"Compiled: {cell.report.compiled}")
    return _sentences(told)


def _sentences(lines: Iterable[str]) -> str:
    """Return a list of sentences, each with its topic in bold, where it begins with one."""
    items = []
    for line in lines:
        topic, colon, rest = line.partition(": ")
        bold = colon and len(topic) < 24
        items.append(f"<b>{html.escape(topic)}</b> {html.escape(rest)}" if bold else html.escape(line))
    return f'<ul class="sentences">{"".join(f"<li>{item}</li>" for item in items)}</ul>' if items else ""


def _modules(graph: SRG) -> str:
    ops: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    for node in graph.nodes:
        name = node.module_at(MODULE_DEPTH) or "(outside modules)"
        ops[name] += 1
        flops[name] += node.flops
    ranked = sorted(ops, key=lambda name: (-flops[name], -ops[name], name))
    shown, rest = ranked[:MODULES_SHOWN], ranked[MODULES_SHOWN:]
    total = sum(flops.values())
    rows = [_module_row(name, ops[name], flops[name], total) for name in shown]
    if rest:
        more = counted(len(rest), "more module")
        rows.append(_module_row(more, sum(ops[n] for n in rest), sum(flops[n] for n in rest), total))
    phases = Counter(node.phase for node in graph.nodes)
    said = ", ".join(f"{phase} {count:,}" for phase, count in phases.most_common())
    size = f"{len(graph.nodes):,} ops, {total / 1e9:,.3f} GFLOP"
    head = f"{size}, of the largest part between two cuts. By phase: {said}."
    return f'<p class="soft">{html.escape(head)}</p>' + _table(
        ("Module", "", "Ops", "GFLOP", "Share"), rows, numbers=3
    )


def _module_row(name: str, ops: int, flops: int, total: int) -> tuple[str, ...]:
    share = flops / total if total else 0.0
    meter = f'<span class="meter"><i style="width:{share:.2%}"></i></span>'
    return f"<code>{html.escape(name)}</code>", meter, f"{ops:,}", f"{flops / 1e9:,.3f}", f"{share:.1%}"


def _schedule(cell: Cell) -> str:
    try:
        planned = cell.schedule
    except DjinnError as error:
        return f"<p>{html.escape(str(error))}</p>"
    said = sentence_of_times(planned, cell.report)
    return f"<p>{html.escape(said)}</p>{_sentences(planned.explain())}"


def sentence_of_times(planned: ExecutionSchedule, report: CellReport) -> str:
    """Say how long the part with that schedule was predicted to run, and how long the device ran."""
    predicted, ran = format_seconds(planned.predicted_s), format_seconds(report.run_s)
    if report.device is None:
        return f"Predicted {predicted}. Nothing of it ran."
    if report.parts <= 1:
        return f"Predicted {predicted}, measured {ran}."
    return f"The largest of {report.parts} parts: predicted {predicted}. The device ran all parts in {ran}."


def _cuts(report: CellReport) -> str:
    cuts = [cut for cut in report.cuts if cut.cause != STREAMED]
    rows = [
        (
            html.escape(name_of(cut.cause)),
            str(cut.line) if cut.line else "",
            f"{cut.ops:,}",
            format_seconds(cut.seconds),
            format_seconds(cut.run_s),
        )
        for cut in cuts[:CUTS_SHOWN]
    ]
    notes = [loop.sentence() for loop in loops_of_cuts(cuts)]
    if len(cuts) < len(report.cuts):
        notes.append(
            f"{counted(len(report.cuts) - len(cuts), 'part')} sent ahead while recording, without a cut."
        )
    if len(cuts) > CUTS_SHOWN:
        notes.append(f"{len(cuts) - CUTS_SHOWN} more cuts are left out.")
    table = _table(("Cause", "Line", "Ops", "Time", "Device ran"), rows, numbers=4) if rows else ""
    return table + _sentences(notes)


def _code(cell: Cell) -> str:
    """Return the cell's source with numbered lines; those that cut it are marked."""
    cut_lines = {cut.line for cut in cell.report.cuts if cut.cause != STREAMED}
    return (
        '<pre class="code">{}</pre>'.format("".join(_code_lines(cell.code, cut_lines))) if cell.code else ""
    )


def _code_lines(code: str, marked: set[int]) -> Iterator[str]:
    for number, line in enumerate(code.splitlines(), 1):
        mark = ' class="cut" title="This line cut the cell."' if number in marked else ""
        yield f"<span{mark}><b>{number}</b>{html.escape(line)}\n</span>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """Return a table whose cells are HTML; the last ``numbers`` columns are aligned right."""
    first = len(heads) - numbers

    def row(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="number">{cell}</{tag}>' if index >= first else f"<{tag}>{cell}</{tag}>"
            for index, cell in enumerate(cells)
        )

    head = f"<thead><tr>{row('th', heads)}</tr></thead>"
    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'
