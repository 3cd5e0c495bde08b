"""Session memory in figures, as HTML: what each device's tiers hold, its link, and how well it all went."""

from __future__ import annotations

from html import escape

from djinn_lab.client.session_memory import STATES, format_rate
from djinn_lab.dashboard.widgets.theme import BAD_COLOUR, MEMORY_COLOURS, SHARED_COLOUR
from djinn_lab.memory.snapshot import DeviceAccount
from djinn_lab.protocol.rest.sessions import MemoryView
from djinn_lab.units import format_bytes, format_seconds

Part = tuple[str, str, int]
"""Name of a bar's part, its colour or the CSS class of its hatching, and its bytes."""
_OPTIONS = {"Host": "--host-memory", "Disk": "--disk"}
USED_BAD_RATIO = 2.0
RESERVED = "reserved"
"""Wake-ups that take longer than this many times what copying takes are marked."""


def device_cards(memory: MemoryView, stale: bool) -> str:
    """Return a card for each device: its three tiers and its link."""
    cards = "".join(device_card(device, memory, device.device) for device in memory.devices)
    if not cards:
        return "<p class='muted'>The pool has no devices yet; they are starting.</p>"
    return f"<div class='cards wide{' stale' if stale else ''}'>{cards}</div>"


def device_card(device: DeviceAccount, memory: MemoryView, title: str) -> str:
    """Return the card of one device: its three tiers and its link. ``title``: at its top."""
    here = [session for session in memory.sessions if session.device == device.device]
    counts = {state: sum(session.state == state for session in here) for state in STATES}
    on_device = counts["busy"] + counts["idle"]
    parked = counts["host"] + counts["disk"]
    summary = f"{on_device} resident, {counts['loading']} loading, {parked} parked"
    tiers = _tier("Device", _device_parts(device), device.memory_bytes, device.peak_bytes)
    for name, tier, used, limit in (
        ("Host", "host", device.host_used_bytes, device.host_bytes),
        ("Disk", "disk", device.disk_used_bytes, device.disk_bytes),
    ):
        parked = min(used, sum(session.total_bytes for session in here if session.tier == tier))
        tiers += _lower_tier(
            name, [("parked", _colour(tier), parked), ("copies", "copies", used - parked)], limit
        )
    return (
        f"<section class='card' aria-label='Memory of {escape(device.device)}'><div class='head'>"
        f"<b>{escape(title)}</b><span class='name'>{summary}</span></div>"
        f"{tiers}{_link(device)}</section>"
    )


def _device_parts(device: DeviceAccount) -> list[Part]:
    """Return the parts of a device's used memory, and what is reserved. Bytes of no known part are *used*."""
    known = device.busy_bytes + device.idle_bytes + device.loading_bytes + device.shared_bytes
    free = device.memory_bytes - max(known, device.used_bytes)
    return [
        ("busy", _colour("busy"), device.busy_bytes),
        ("idle", _colour("idle"), device.idle_bytes),
        ("loading", _colour("loading"), device.loading_bytes),
        ("shared weights", SHARED_COLOUR, device.shared_bytes),
        ("used", "#7F8C99", max(0, device.used_bytes - known)),
        (RESERVED, "reserved", min(device.reserved_bytes, max(0, free))),
    ]


def _lower_tier(name: str, parts: list[Part], limit: int) -> str:
    """Render the host or the disk: *copies* are of sessions whose state is higher up, made in advance, and
    can be dropped at once."""
    if not limit:
        return (
            f"<div class='row'><span>{name}</span><span class='muted'>none is set aside for it: "
            f"<code>pool start {_OPTIONS[name]}</code></span></div>"
        )
    return _tier(name, parts, limit)


def _tier(name: str, parts: list[Part], limit: int, peak: int | None = None) -> str:
    taken = sum(nbytes for _, _, nbytes in parts)
    used = sum(nbytes for name, _, nbytes in parts if name != RESERVED)
    bars = "".join(_bar(part, limit) for part in parts if part[2])
    words = [_words(part) for part in parts if part[2]]
    words.append(f"<span class='key'>{format_bytes(max(0, limit - taken))} free</span>")
    most = f" · at most {format_bytes(peak)} so far" if peak else ""
    share = used / limit if limit else 0.0
    return (
        f"<div class='row'><span>{name}</span><span class='muted'>{format_bytes(used)} of "
        f"{format_bytes(limit)} ({share:.0%}){most}</span></div>"
        f"<div class='stack' role='meter' aria-label='{name} memory' aria-valuenow='{share:.0%}'>{bars}</div>"
        f"<div class='legend'>{''.join(words)}</div>"
    )


def _bar(part: Part, limit: int) -> str:
    name, colour, nbytes = part
    look = "" if colour.startswith("#") else f"class='{colour}'"
    fill = f";background:{colour}" if colour.startswith("#") else ""
    return (
        f"<i {look} style='width:{min(1.0, nbytes / limit):.2%}{fill}' "
        f"title='{name}: {format_bytes(nbytes)}'></i>"
    )


def _words(part: Part) -> str:
    name, colour, nbytes = part
    mark = f"<i style='background:{colour}'></i>" if colour.startswith("#") else f"<i class='{colour}'></i>"
    return f"<span class='key'>{mark}{name} {format_bytes(nbytes)}</span>"


def _link(device: DeviceAccount) -> str:
    """Both directions against the measured rate."""
    rate = device.link_bytes_per_s
    if rate is None:
        return (
            "<div class='row'><span>Link</span><span class='muted'>its rate is not measured yet</span></div>"
        )
    rows = ""
    for name, moved in (("Link, out", device.out_bytes_per_s), ("Link, in", device.in_bytes_per_s)):
        share = min(1.0, moved / rate) if rate else 0.0
        rows += (
            f"<div class='row'><span>{name}</span><span class='link'><span class='meter' role='meter' "
            f"aria-label='{name}' aria-valuenow='{share:.0%}'><i style='width:{share:.1%}'></i></span>"
            f"<span class='muted'>{format_rate(moved)} of {format_rate(rate)}</span></span></div>"
        )
    return rows


def figures(memory: MemoryView) -> str:
    """Return the figures since the pool started, as tiles."""
    tiles = "".join((_wakes(memory), _ratio(memory), _prefetches(memory), _swaps(memory)))
    return f"<div class='tiles'>{tiles}{_checks(memory)}{_moved(memory)}{_admission(memory)}</div>"


def _tile(title: str, value: str, sub: str, tone: str = "") -> str:
    return f"<div class='tile {tone}'><span>{title}</span><b>{value}</b><small>{sub}</small></div>"


def _wakes(memory: MemoryView) -> str:
    wakes = memory.wake_ups
    if not wakes.count or wakes.p50_s is None:
        return _tile("Wake-up, p50 / p99", "–", "no session has woken up yet")
    p50, p99, most = map(_seconds, (wakes.p50_s, wakes.p99_s or 0.0, wakes.max_s or 0.0))
    sub = f"n = {wakes.count:,}; at most {most}; {wakes.hits / wakes.count:.0%} without a wait for a copy"
    return _tile("Wake-up, p50 / p99", f"{p50} / {p99}", sub)


def _seconds(seconds: float) -> str:
    return "< 1 ms" if seconds < 0.001 else format_seconds(seconds)


def _ratio(memory: MemoryView) -> str:
    wakes = memory.wake_ups
    if wakes.p99_ratio is None:
        return _tile("Wake-up beside the best copy, p99", "–", "no wake-up needed a copy yet")
    middle = "–" if wakes.p50_ratio is None else f"{wakes.p50_ratio:.2f}"
    tone = "bad" if wakes.p99_ratio > USED_BAD_RATIO else ""
    sub = f"p50 {middle} ×; the best copy is bytes over the link’s rate"
    return _tile("Wake-up beside the best copy, p99", f"{wakes.p99_ratio:.2f} ×", sub, tone)


def _prefetches(memory: MemoryView) -> str:
    counts = memory.counters
    parts = [
        ("on time", "#009E73", counts.prefetches_on_time),
        ("late", "#E69F00", counts.prefetches_late),
        ("wasted", BAD_COLOUR, counts.prefetches_wasted),
    ]
    settled = sum(nbytes for _, _, nbytes in parts)
    if not counts.prefetches:
        return _tile("Prefetches on time", "–", "none was needed yet")
    sub = f"of {counts.prefetches:,}: {', '.join(f'{count:,} {name}' for name, _, count in parts)}"
    value = f"{counts.prefetches_on_time / settled:.0%}" if settled else "under way"
    bars = "".join(
        f"<i style='width:{count / settled:.1%};background:{colour}' title='{name}: {count}'></i>"
        for name, colour, count in parts
        if settled and count
    )
    return _tile("Prefetches on time", value, f"{sub}<span class='stack thin'>{bars}</span>")


def _swaps(memory: MemoryView) -> str:
    counts = memory.counters
    if not counts.evictions:
        return _tile("Useful swaps", "–", "nothing was swapped out yet")
    share = f"{min(1.0, counts.useful_swaps / counts.evictions):.0%}"
    return _tile(
        "Useful swaps", share, f"{counts.useful_swaps:,} of {counts.evictions:,} freed memory that was used"
    )


def _checks(memory: MemoryView) -> str:
    counts = memory.counters
    tone = "bad" if counts.mismatches else ""
    sub = f"hashes compared in {counts.restores:,} restores"
    return _tile("Checked / failed", f"{counts.hash_checks:,} / {counts.mismatches:,}", sub, tone)


def _moved(memory: MemoryView) -> str:
    counts = memory.counters
    sub = f"{counts.stores:,} stores, {counts.restores:,} restores, {counts.demotions:,} to disk"
    if counts.failed_transfers:
        sub += f", {counts.failed_transfers:,} failed"
    value = f"{format_bytes(counts.bytes_out)} / {format_bytes(counts.bytes_in)}"
    return _tile("Stored / restored", value, sub)


def _admission(memory: MemoryView) -> str:
    counts = memory.counters
    waiting = sum(cell.release.of_other_sessions for cell in memory.deferred)
    lost = f"; {counts.values_lost:,} times values were lost" if counts.values_lost else ""
    sub = f"{counts.admission_waits:,} waited for other sessions to leave{lost}"
    return _tile(
        "Waiting for memory",
        f"{len(memory.deferred)}",
        f"{waiting} for admission; {sub}",
        "bad" if lost else "",
    )


def sentence(memory: MemoryView) -> str:
    """Summarise session memory in one sentence."""
    states = [session.state for session in memory.sessions]
    count = {state: states.count(state) for state in STATES}
    live = sum(session.total_bytes for session in memory.sessions)
    capacity_bytes = sum(device.memory_bytes for device in memory.devices)
    kv = sum(session.kv_bytes for session in memory.sessions)
    words = [
        f"{count['busy'] + count['idle']} on a device",
        f"{count['loading']} loading",
        f"{count['host']} on the host",
        f"{count['disk']} on disk",
    ]
    times = f", {live / capacity_bytes:.2f} times the devices’ memory" if capacity_bytes and live else ""
    part = f", {format_bytes(kv)} of it key-value caches" if kv else ""
    policy = f" Policy: {memory.policy}." if memory.policy else ""
    return (
        f"{len(memory.sessions)} sessions hold {format_bytes(live)}{part}{times}: {', '.join(words)}.{policy}"
    )


def _colour(state: str) -> str:
    return MEMORY_COLOURS[state]
