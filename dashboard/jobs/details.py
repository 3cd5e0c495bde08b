"""What is known of one cell: where its time went, why it was sent in parts, its events and its code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from djinn_lab.dashboard.jobs.trace import trace_lines
from djinn_lab.dashboard.widgets.panes import notice
from djinn_lab.jobs.resources import forecast_sentence, used_energy
from djinn_lab.protocol.rest.jobs import JobEvent, JobView
from djinn_lab.units import counted, format_bytes, format_seconds

EVENTS_MAX = 8
CUTS_MAX = 5
CODE_CHARS_MAX = 4000


def job_details_html(job: JobView, code: str = "", events: Sequence[JobEvent] = (), qos: str = "") -> str:
    """Render what is known of a cell. ``code``, ``events``: of
    :class:`~djinn_lab.protocol.rest.jobs.JobDetail`. ``qos``: its class of service, where it has one."""
    by_class = f", class {qos.lower().replace('_', ' ')}" if qos else ""
    priority = escape(f"{job.priority.lower()} priority{by_class}")
    rows = [
        ("Cell", f"{escape(job.cell or '–')} of {escape(job.user)}, {priority}"),
        ("Job", f"<code>{escape(job.job)}</code>"),
        ("Time", _stages(job)),
        ("Predicted", _predicted(job)),
        *([("Energy", escape(used_energy(job.used_j)))] if job.finished and job.used_j is not None else ()),
        ("Peak memory", format_bytes(job.peak_bytes) if job.peak_bytes else "–"),
        ("Sent in parts", _cuts(job)),
        ("Events", _events(job, events)),
    ]
    body = "".join(f"<tr><th scope='row'>{label}</th><td>{value}</td></tr>" for label, value in rows)
    shown = (
        f"<pre>{escape(code[:CODE_CHARS_MAX])}</pre>"
        if code
        else "<p class='muted'>The code is shown to its owner only.</p>"
    )
    failure = ""
    if job.failure is not None:
        failure = notice(f"{job.failure.type_name}: {job.failure.message}", job.failure.advice, "bad")
    split = f"<div class='split'><table class='facts'>{body}</table><div>{shown}</div></div>"
    return f"{failure}<div class='card'>{split}</div>"


def _stages(job: JobView) -> str:
    if not job.stages:
        return "–"
    total = sum(job.stages.values())
    longest = sorted(job.stages.items(), key=lambda stage: -stage[1])
    parts = ", ".join(f"{escape(name)} {format_seconds(seconds)}" for name, seconds in longest)
    return f"{format_seconds(total)} in stages: {parts}"


def _predicted(job: JobView) -> str:
    if job.predicted is not None and not job.finished:
        return escape(forecast_sentence(job.predicted, job.watts))
    measured = "" if job.measured_s is None else f"measured {format_seconds(job.measured_s)}"
    predicted = "" if job.predicted_run_s is None else format_seconds(job.predicted_run_s)
    if measured and not predicted:
        return f"not as a whole: it was sent in {job.segments} parts; {measured}" if job.segments > 1 else "–"
    return ", ".join(filter(None, (predicted, measured))) or "–"


def _cuts(job: JobView) -> str:
    ahead = job.segments - len(job.cuts)
    if len(job.cuts) <= 1:
        parts = f", in {counted(job.segments, 'part')} while it was recorded" if ahead > 0 else ""
        return f"no: the whole cell went as one graph{parts}"
    causes = Counter(f"{cut.cause} (line {cut.line})" if cut.line else cut.cause for cut in job.cuts)
    listed = ", ".join(f"{count} × {escape(cause)}" for cause, count in causes.most_common(CUTS_MAX))
    more = f" and {len(causes) - CUTS_MAX} other causes" if len(causes) > CUTS_MAX else ""
    return f"{job.segments} parts; the last cuts were {listed}{more}"


def _events(job: JobView, events: Sequence[JobEvent]) -> str:
    lines = trace_lines(events, EVENTS_MAX)
    if not lines:
        return "none known: the pool remembers those of its latest cells, and shows them to their owner only"
    return "<br>".join(map(escape, lines))
