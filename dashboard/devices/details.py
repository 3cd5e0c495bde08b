"""One device in cards, as HTML: what it runs, its worker process, its description."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from djinn_lab.dashboard.costs.tables import device_card as costs_card
from djinn_lab.dashboard.devices.tables import (
    NUMA,
    cell_names,
    costs_of,
    running_on,
    waiting_for,
    worker_words,
)
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.memory.cards import device_card as memory_card
from djinn_lab.protocol.rest.queue import RunningJob
from djinn_lab.protocol.rest.status import DeviceView
from djinn_lab.units import counted, whole_seconds

Fact = tuple[str, str]
"""Name and text, which are not HTML yet."""


def details_html(device: DeviceView, snapshot: Snapshot) -> str:
    """Return the cards of one device."""
    names = cell_names(snapshot.jobs, snapshot.notebooks_by_session())
    cards = [
        _card("Now", device.device, _now(device, snapshot, names)),
        _card("Worker process", device.device, _worker(device)),
        _card("Description", device.device, _description(device)),
    ]
    memory = snapshot.memory
    if memory is not None:
        accounts = (one for one in memory.devices if one.device == device.device)
        cards += [memory_card(account, memory, "Memory") for account in accounts]
    measured = costs_of(snapshot.costs, device.device)
    if measured is not None:
        cards.append(costs_card(measured, "Speed", ""))
    stale = " stale" if snapshot.connection != "live" else ""
    return f"<div class='cards wide{stale}'>{''.join(cards)}</div>"


def _card(title: str, device: str, facts: list[Fact]) -> str:
    body = "".join(
        f"<div class='row'><span class='muted'>{escape(name)}</span><span>{escape(text)}</span></div>"
        for name, text in facts
    )
    label = escape(f"{title}: {device}")
    head = f"<div class='head'><b>{title}</b></div>"
    return f"<section class='card' aria-label='{label}'>{head}{body}</section>"


def _now(device: DeviceView, snapshot: Snapshot, names: Mapping[str, str]) -> list[Fact]:
    assert snapshot.status is not None
    queue = snapshot.queue
    facts: list[Fact] = []
    for job in running_on(queue, device.device):
        facts += _running(job, names, snapshot.status.now)
    if not facts:
        held = names.get(device.job, device.job[:8]) if device.job else "nothing"
        facts.append(("Running", held))
    waiting = waiting_for(queue, device.device)
    facts.append(("Pending", str(len(waiting) if queue is not None else device.queue_length)))
    if waiting:
        first = waiting[0]
        facts.append(("Next", f"{names.get(first.job, first.job[:8])} of {first.user}"))
        facts.append(("Why the next one waits", first.sentence))
    if device.cordoned:
        facts.append(("Cordoned", "no cell starts here until the device is uncordoned"))
    return facts


def _running(job: RunningJob, names: Mapping[str, str], now: float) -> list[Fact]:
    facts: list[Fact] = [
        ("Running", names.get(job.job, job.job[:8])),
        ("User", f"{job.user}, {job.priority.lower()} priority"),
    ]
    if job.since is not None:
        facts.append(("For", whole_seconds(job.run_s(now))))
    if job.ends_at is not None:
        facts.append(("Predicted end in", whole_seconds(max(0.0, job.ends_at - now))))
    elif job.unpredicted:
        facts.append(("Predicted end", job.unpredicted))
    if job.members:
        facts.append(("Gang", ", ".join(filter(None, (job.device, *job.members)))))
    if job.preempting:
        facts.append(("Preemption", "requested; the cell stops after its current op"))
    if job.unusual:
        facts.append(("Note", job.unusual))
    return facts


def _worker(device: DeviceView) -> list[Fact]:
    answers = {"silent": "no", "lost": "no", "starting": "not yet"}.get(device.state, "yes")
    facts: list[Fact] = [("State", worker_words(device)), ("Answers", answers)]
    facts += [
        (f"Process of {group}" if group else "Process, no user yet", str(pid))
        for group, pid in sorted(device.workers.items())
    ]
    if not device.workers and device.pid is not None:
        facts.append(("Process", str(device.pid)))
    facts.append(("Restarts", str(device.restarts)))
    if device.failure is not None:
        facts.append(("Why it does not start", device.failure))
    return facts


def _description(device: DeviceView) -> list[Fact]:
    numa = next((label.removeprefix(NUMA) for label in device.labels if label.startswith(NUMA)), "unknown")
    given = [label for label in device.labels if label not in device.own_labels]
    holding = sum(1 for count in device.session_bytes.values() if count)
    return [
        ("Kind", device.kind),
        ("Name", device.name),
        ("Threads", str(device.threads)),
        ("NUMA node", numa),
        ("torch", device.torch_version),
        ("Labels", ", ".join(given) or "none"),
        *([("Host", device.host)] if device.host else []),
        ("Labels of its own", ", ".join(device.own_labels) or "none"),
        ("Taints", ", ".join(device.taints) or "none"),
        ("Price of an hour", f"{device.price:g}" if device.price else "none"),
        ("Power when busy", "unknown" if device.watts is None else f"{device.watts:g} W"),
        ("Holds tensors of", counted(holding, "session")),
    ]
