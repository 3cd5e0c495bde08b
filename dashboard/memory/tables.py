"""Session memory as rows of tables, as facts of one session, and as files to take away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from djinn_lab.client.session_memory import STATES, expected_wake
from djinn_lab.dashboard.csv_text import csv_text
from djinn_lab.dashboard.widgets.table_cells import columns, number_cell, share_cell
from djinn_lab.dashboard.widgets.theme import MEMORY_COLOURS
from djinn_lab.events import MemoryRelease
from djinn_lab.memory.snapshot import DeferredSegment, MemoryChange
from djinn_lab.protocol.rest.sessions import MemorySession, MemoryView
from djinn_lab.units import capitalised, format_bytes, format_clock, format_seconds, whole_seconds

SESSION_COLUMNS = columns(
    ("name", "Session", "short"),
    ("user", "User", "short"),
    ("state", "Tier", "pill"),
    ("phase", "Phase", "short"),
    ("moving", "Moving", "short"),
    ("device", "Device", "short"),
    ("bytes", "Memory", "number"),
    ("kv", "KV", "number"),
    ("stored", "Stored", "progress"),
    ("wake", "Predicted wake-up", "text"),
    ("lease", "Kept another", "number"),
    ("last", "Last wake-up", "number"),
    ("ratio", "× best copy", "number"),
)
DEFERRED_COLUMNS = columns(
    ("name", "Session", "short"),
    ("kind", "Waits for", "pill"),
    ("device", "Device", "short"),
    ("since", "Wait", "number"),
    ("estimate", "Estimate", "number"),
    ("reason", "Reason", "text"),
)
HAPPENING_COLUMNS = columns(
    ("at", "At", "short"),
    ("what", "Event", "short"),
    ("device", "Device", "short"),
    ("bytes", "Bytes", "number"),
    ("took", "Duration", "number"),
    ("reason", "Reason", "text"),
)
WHAT = {
    "store": "stored",
    "evict": "evicted",
    "restore": "restored",
    "demote": "demoted to disk",
    "forget": "copy dropped",
    "prefetch": "prefetch begun",
    "wake": "woke up",
    "defer": "deferred",
    "grant": "granted",
    "lost": "values lost",
    "failed": "copy failed",
}
"""Each kind of happening in plain words."""
SESSIONS_SHOWN_MAX = 100
_ORDER = list(STATES)


def session_row(session: MemorySession, now: float) -> dict[str, object]:
    """Return a session as a row of the table; ``now`` is the pool's clock."""
    share = min(1.0, session.stored_bytes / session.total_bytes) if session.total_bytes else None
    lease_s = None if session.leased_until_s is None else session.leased_until_s - now
    connection = "" if session.client == "connected" else f" ({session.client})"
    return {
        "id": session.session,
        "name": {"text": session.label + connection, "title": session.session},
        "user": session.user,
        "state": {"text": STATES[session.state], "colour": MEMORY_COLOURS[session.state]},
        "phase": session.phase.lower().replace("_", " "),
        "moving": session.moving,
        "device": session.device,
        "bytes": number_cell(session.total_bytes, format_bytes),
        "kv": number_cell(session.kv_bytes or None, format_bytes),
        "stored": share_cell(share),
        "wake": expected_wake(session, now),
        "lease": number_cell(lease_s, "{:.0f} s".format) if lease_s and lease_s > 0 else None,
        "last": number_cell(session.last_wake_s, format_seconds),
        "ratio": number_cell(session.last_ratio, "{:.2f}".format),
    }


def session_rows(memory: MemoryView, show: str) -> tuple[list[dict[str, object]], str]:
    """Return the sessions to list, busiest first, and a note when some are left out. ``show``: ``all``,
    ``device`` or ``parked``."""
    chosen = [session for session in memory.sessions if _is_shown(session, show)]
    chosen.sort(key=lambda session: (_ORDER.index(session.state), -session.total_bytes, session.session))
    note = ""
    if len(chosen) > SESSIONS_SHOWN_MAX:
        note = f"The first {SESSIONS_SHOWN_MAX} of {len(chosen)} are listed; the CSV file has all"
    return [session_row(session, memory.now) for session in chosen[:SESSIONS_SHOWN_MAX]], note


def _is_shown(session: MemorySession, show: str) -> bool:
    if show == "device":
        return session.state in ("busy", "idle", "loading")
    return show != "parked" or session.state in ("host", "disk")


_RELEASES = {
    MemoryRelease.COPIES: ("copies", "#56B4E9"),
    MemoryRelease.PREEMPTION: ("running cells", "#E69F00"),
    MemoryRelease.CELLS: ("running cells", "#E69F00"),
    MemoryRelease.ADMISSION: ("admission", "#D55E00"),
    MemoryRelease.CLOSE: ("a session to close", "#D55E00"),
}
"""What a cell waits for, and its colour."""


def deferred_rows(memory: MemoryView) -> list[dict[str, object]]:
    """List the cells that wait for memory, the longest wait first."""
    ordered = sorted(memory.deferred, key=lambda cell: cell.since_s)
    return [_deferred_row(cell, memory) for cell in ordered[:SESSIONS_SHOWN_MAX]]


def _deferred_row(cell: DeferredSegment, memory: MemoryView) -> dict[str, object]:
    kind = _RELEASES[cell.release]
    return {
        "id": cell.job,
        "name": memory.readable(cell.session),
        "kind": {"text": kind[0], "colour": kind[1]},
        "device": cell.device,
        "since": number_cell(max(0.0, memory.now - cell.since_s), whole_seconds),
        "estimate": number_cell(cell.estimate_s, lambda seconds: f"about {format_seconds(seconds)}"),
        "reason": capitalised(memory.readable(cell.reason)),
    }


def happening_rows(
    happenings: Sequence[MemoryChange], most: int, memory: MemoryView
) -> list[dict[str, object]]:
    """List the newest changes, at most ``most``, the latest first."""
    return [
        {
            "id": f"{happening.at_s:.6f}-{happening.what}-{number}",
            "at": format_clock(happening.at_s),
            "what": WHAT.get(happening.what, happening.what),
            "device": happening.device,
            "bytes": number_cell(happening.nbytes or None, format_bytes),
            "took": number_cell(happening.seconds, format_seconds),
            "reason": memory.readable(happening.reason),
        }
        for number, happening in enumerate(reversed(happenings[-most:]))
    ]


def session_facts(session: MemorySession, now: float, why_moving: str = "") -> str:
    """Return everything known about one session, as a table. ``why_moving``: the reason of the copy under
    way."""
    state = STATES[session.state]
    moving = f"{session.moving}: {why_moving}" if why_moving else str(session.moving)
    waking = "–"
    if session.last_wake_s is not None:
        waking = format_seconds(session.last_wake_s)
        if session.last_floor_s and session.last_ratio is not None:
            floor = format_seconds(session.last_floor_s)
            waking += f", {session.last_ratio:.2f} times the {floor} that copying its bytes takes"
    idle = "–"
    if session.idle_since_s is not None:
        idle = format_seconds(float(int(max(0.0, now - session.idle_since_s))))
    rows = [
        (
            "Session",
            f"<code>{escape(session.session)}</code> of {escape(session.user)}, {session.jobs} cells",
        ),
        ("Tier", escape(state) + (f" ({escape(session.device)})" if session.device else "")),
        ("Transfer", escape(moving) if session.moving else "–"),
        ("Phase", escape(f"{session.phase}, {session.connection}")),
        (
            "Memory",
            f"{format_bytes(session.total_bytes)}, {format_bytes(session.kv_bytes)} of it key-value caches",
        ),
        ("Offloaded", format_bytes(session.offloaded_bytes) if session.offloaded_bytes else "–"),
        ("Stored outside", format_bytes(session.stored_bytes)),
        ("Idle for", idle),
        ("Predicted wake-up", escape(expected_wake(session, now)) or "nothing is known"),
        ("Last wake-up", waking),
    ]
    body = "".join(f"<tr><th scope='row'>{label}</th><td>{value}</td></tr>" for label, value in rows)
    return f"<h2>{escape(session.label)}</h2><table class='facts'>{body}</table>"


def sessions_csv(memory: MemoryView | None) -> str:
    """Return every session with every field as CSV, in the pool's own words."""
    fields = [*MemorySession.__struct_fields__, "state", "last_ratio"]
    sessions = memory.sessions if memory is not None else ()
    return csv_text(fields, ([getattr(session, field) for field in fields] for session in sessions))


def happenings_csv(happenings: Iterable[MemoryChange]) -> str:
    """Return the changes as CSV, oldest first."""
    fields = list(MemoryChange.__struct_fields__)
    return csv_text(fields, (list(msgspec.structs.astuple(happening)) for happening in happenings))
