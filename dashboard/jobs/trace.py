"""Events that the queue handled for one cell, in words: as rows of a table and as lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from djinn_lab.protocol.rest.jobs import JobEvent
from djinn_lab.units import format_bytes, format_clock, format_seconds

WHAT = {
    "SegmentSubmitted": "segment submitted",
    "SegmentRefused": "segment refused",
    "MemoryGranted": "memory granted, session state restored",
    "MemoryDeferred": "memory deferred",
    "MemoryRefused": "memory refused",
    "SegmentProgressed": "progress",
    "SegmentFinished": "segment ended",
    "SegmentPreempted": "preempted between two ops",
    "MemberLeft": "device of its gang given back",
    "PreemptRequested": "preemption requested by a user",
    "MoveRefused": "move of its session refused",
    "MoveProposed": "move of its session proposed",
    "CancelRequested": "cancellation requested",
    "CheckpointAnnounced": "checkpoint announced",
    "DataPublished": "data published",
    "ExternalDependencyChanged": "a batch notebook that it depends on changed",
    "JobFinished": "ended by its notebook",
    "JobReturned": "back after a restart of the pool",
    "DeviceExpected": "device of a node that the cluster was asked for",
    "DeviceAdded": "device ready",
    "DeviceLost": "device lost",
    "DeviceHeard": "device answers again or no longer",
    "DeviceCordoned": "device cordoned or uncordoned",
    "DeviceDescribed": "device described by an operator",
    "PolicyChanged": "policy of the queue changed",
    "SharesChanged": "targets of an account changed",
    "ReservationMade": "devices reserved",
    "ReservationEnded": "reservation ended",
    "SessionDetached": "notebook disconnected",
    "SessionClosed": "session closed",
    "ClockTicked": "due by the clock",
}
FIELDS = {
    "ops_total": "ops",
    "ops_done": "ops done",
    "ops_before": "ops before",
    "final": "last segment",
    "predicted_s": "predicted run time",
    "predicted_spread": "uncertain by a factor of",
    "memory": "session memory",
    "memory_reason": "memory",
    "memory_wait_s": "memory expected in",
    "memory_release": "memory comes from",
    "memory_bytes": "memory",
    "memory_byte_s": "memory held",
    "release": "memory comes from",
    "wait_s": "expected in",
    "queued": "until its turn is near",
    "transfer_bytes": "copied",
    "move_s": "a move takes",
    "parts_s": "a move of its gang takes",
    "replayed_s": "lost values made again in",
    "devices_why": "fewer devices",
    "met": "published before",
    "external": "batch notebooks",
    "fits": "could begin on",
    "terms": "options",
    "continues": "sent again",
    "undone": "work since the last start lost",
    "message": "message",
    "preemptions": "preemptions",
    "ran_s": "run time before",
    "submitted_at_s": "submitted at",
    "started_at_s": "started at",
    "ended_at_s": "ended at",
    "deadline_at_s": "deadline at",
    "deadline_s": "deadline in",
    "timeout_s": "run time at most",
    "gang": "gang of",
    "gang_min": "at least",
    "after_timeout_s": "waits at most",
    "after_any": "however it ended",
    "filled": "memory filled",
    "run_s": "predicted run time",
}
"""Words for a field; others are shown by their name, with spaces."""
_KNOWN = frozenset({"type", "at_s", "job", "session", "user", "segment", "account", "batch", "phase"})
_USUAL: Mapping[str, object] = {
    "predicted_spread": 1.0,
    "devices": 1,
    "memory": "free",
    "memory_release": "copies",
    "release": "copies",
}
"""Values that say nothing."""
ITEMS_MAX = 4


def trace_rows(events: Iterable[JobEvent]) -> list[dict[str, object]]:
    """List the queue's events of one job as rows, oldest first."""
    rows: list[dict[str, object]] = []
    before = None
    for number, event in enumerate(events):
        gap_s = 0.0 if before is None else max(0.0, event.at - before)
        before = event.at
        rows.append(
            {
                "id": f"{number}-{event.event}",
                "at": {"text": format_clock(event.at), "sort": event.at},
                "after": {"text": format_seconds(gap_s), "sort": gap_s},
                "what": WHAT.get(event.event, event.event),
                "detail": detail_text(event.detail),
            }
        )
    return rows


def trace_lines(events: Sequence[JobEvent], most: int) -> list[str]:
    """List the newest events of one job as lines of text, oldest first."""
    lines = []
    for event in events[-most:]:
        detail = detail_text(event.detail)
        said = f"{format_clock(event.at)} {WHAT.get(event.event, event.event)}"
        lines.append(f"{said}: {detail}" if detail else said)
    return lines


def detail_text(detail: Mapping[str, Any]) -> str:
    """Say in words what only the event itself says, beside what the page says anyway."""
    return ", ".join(
        _field(key, value)
        for key, value in detail.items()
        if key not in _KNOWN and value and _USUAL.get(key) != value
    )


def _field(key: str, value: object) -> str:
    words = FIELDS.get(key, _plain(key))
    return words if value is True else f"{words} {_value(key, value)}"


def _plain(key: str) -> str:
    """Return a field's name with spaces, without its unit."""
    for unit in ("_byte_s", "_bytes", "_at_s", "_s"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _value(key: str, value: object) -> str:
    """Write a value with its unit, which ends the field's name."""
    if isinstance(value, Mapping):
        return f"({detail_text(value)})"
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = [_item(one) for one in value[:ITEMS_MAX]]
        more = [f"{len(value) - ITEMS_MAX} more"] if len(value) > ITEMS_MAX else []
        return "; ".join((*shown, *more))
    if isinstance(value, (int, float)):
        return _number(key, value)
    return str(value).strip().rstrip(".")


def _item(value: object) -> str:
    """Write one of several, by its name where it has one."""
    if not isinstance(value, Mapping):
        return _value("", value)
    name = value.get("device") or value.get("name") or ""
    rest = detail_text({key: one for key, one in value.items() if key not in ("device", "name")})
    return f"{name} ({rest})" if name and rest else f"{name}{rest}"


def _number(key: str, value: float) -> str:
    if key == "filled":
        return f"{value:.0%}"
    if key.endswith("_byte_s"):
        return f"{format_bytes(value)}·s"
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key.endswith("_at_s"):
        return format_clock(value)
    if key.endswith("_s"):
        return format_seconds(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
