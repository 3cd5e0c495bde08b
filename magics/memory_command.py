"""``%djinn memory`` in words: where this notebook's state is, and what other sessions hold."""

from __future__ import annotations

from djinn_lab.client.session_memory import STATES, expected_wake, format_rate
from djinn_lab.magics.text_table import aligned
from djinn_lab.memory.snapshot import DeviceAccount
from djinn_lab.protocol.rest.sessions import MemorySession, MemoryView
from djinn_lab.units import format_bytes, format_seconds

OTHERS_SHOWN = 12


def describe_memory(memory: MemoryView, own: str) -> str:
    """Return the text of ``%djinn memory``; ``own``: the id of this notebook's session."""
    lines = _own_lines(memory, own)
    for device in memory.devices:
        lines += _device_lines(device)
    lines += _others(memory, own)
    lines += _wake_lines(memory)
    lines += [_deferred_line(memory, index) for index in range(min(len(memory.deferred), OTHERS_SHOWN))]
    return "\n".join(lines)


def _own_lines(memory: MemoryView, own: str) -> list[str]:
    if not own:
        return ["this notebook holds nothing on the pool yet: it has no session"]
    session = next((one for one in memory.sessions if one.session == own), None)
    if session is None:
        return ["this notebook: its session is not known to the pool any more"]
    if session.state == "none":
        return [f"this notebook ({session.label}) holds nothing on the pool yet"]
    kv = f", {format_bytes(session.kv_bytes)} of it key-value caches" if session.kv_bytes else ""
    if session.offloaded_bytes:
        kv += f", {format_bytes(session.offloaded_bytes)} offloaded until a cell reads them"
    state = STATES[session.state].replace("a device", str(session.device))
    of = "" if str(session.device) in state else f" of {session.device}"
    lines = [f"this notebook ({session.label}): {state}{of}, {format_bytes(session.total_bytes)}{kv}"]
    if session.total_bytes and session.tier == "device":
        share = session.stored_bytes / session.total_bytes
        copied = "all of it has a copy outside the device, so it can leave at once"
        lines.append(f"  {copied if share >= 1 else f'{share:.0%} of it has a copy outside the device'}")
    waking = expected_wake(session, memory.now)
    if waking:
        was = "was " if session.wake_at_s is not None and session.wake_at_s <= memory.now - 1 else ""
        lines.append(f"  {was}expected to compute again {waking}")
    if session.last_wake_s is not None:
        took = "it was on the device"
        if session.last_ratio is not None:
            took = f"{format_seconds(session.last_wake_s)}, {session.last_ratio:.2f} times what copying takes"
        lines.append(f"  last wake-up: {took}")
    return lines


def _device_lines(device: DeviceAccount) -> list[str]:
    parts = {
        "busy": device.busy_bytes,
        "idle": device.idle_bytes,
        "loading": device.loading_bytes,
        "shared weights": device.shared_bytes,
        "reserved": device.reserved_bytes,
    }
    parts_text = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
    used = f"{format_bytes(device.used_bytes)} of {format_bytes(device.memory_bytes)}"
    below = [
        f"{name} {format_bytes(held)} of {format_bytes(limit)}"
        for name, held, limit in (
            ("host", device.host_used_bytes, device.host_bytes),
            ("disk", device.disk_used_bytes, device.disk_bytes),
        )
        if limit
    ]
    own = f" ({parts_text})" if parts_text else ""
    lines = [f"{device.device}: {used} used{own}{''.join(f'; {one}' for one in below)}"]
    if device.link_bytes_per_s is not None:
        lines.append(
            f"  link {format_rate(device.link_bytes_per_s)}; over the last ten seconds "
            f"{format_rate(device.out_bytes_per_s)} out, {format_rate(device.in_bytes_per_s)} in"
        )
    return lines


def _others(memory: MemoryView, own: str) -> list[str]:
    holding = [one for one in memory.sessions if one.session != own and one.state != "none"]
    holding.sort(key=lambda session: (-session.total_bytes, session.session))
    if not holding:
        return ["no other session holds anything"]
    rows: list[tuple[str, ...]] = [
        ("session", "user", "device", "state", "holds", "of it KV", "expected back")
    ]
    rows += [_other(session, memory.now) for session in holding[:OTHERS_SHOWN]]
    lines = aligned(rows)
    if len(holding) > OTHERS_SHOWN:
        left = holding[OTHERS_SHOWN:]
        lines.append(f"and {len(left)} more with {format_bytes(sum(one.total_bytes for one in left))}")
    return lines


def _other(session: MemorySession, now: float) -> tuple[str, ...]:
    return (
        session.label,
        session.user,
        session.device or "-",
        STATES[session.state],
        format_bytes(session.total_bytes),
        format_bytes(session.kv_bytes) if session.kv_bytes else "-",
        expected_wake(session, now) or "-",
    )


def _wake_lines(memory: MemoryView) -> list[str]:
    wakes = memory.wake_ups
    if not wakes.count or wakes.p50_s is None or wakes.p99_s is None:
        return ["wake-ups: none yet"]
    ratio = (
        "" if wakes.p99_ratio is None else f"; with a copy p99 {wakes.p99_ratio:.2f} times what copying takes"
    )
    return [
        f"wake-ups: {wakes.count}, {wakes.hits / wakes.count:.0%} without a wait for a copy, "
        f"p50 {format_seconds(wakes.p50_s)}, p99 {format_seconds(wakes.p99_s)}{ratio}"
    ]


def _deferred_line(memory: MemoryView, index: int) -> str:
    cell = memory.deferred[index]
    estimate = "" if cell.estimate_s is None else f", about {format_seconds(cell.estimate_s)} to go"
    since = format_seconds(max(0.0, memory.now - cell.since_s))
    name, reason = memory.readable(cell.session), memory.readable(cell.reason)
    return f"waits for memory: {name} for {since}{estimate}: {reason}"
