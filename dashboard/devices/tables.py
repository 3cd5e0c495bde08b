"""The pool's devices as rows of a table, and as a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from djinn_lab.dashboard.costs.curve_chart import with_power
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.panes import heading
from djinn_lab.dashboard.widgets.table_cells import columns, number_cell
from djinn_lab.dashboard.widgets.theme import DEVICE_STATE_COLOURS
from djinn_lab.protocol.rest.costs import CostView, DeviceCosts
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.queue import QueueView, RunningJob, WaitingJob
from djinn_lab.protocol.rest.status import DeviceView, HostView, PoolStatus
from djinn_lab.units import counted, format_bytes, whole_seconds

DEVICE_COLUMNS = columns(
    ("device", "Device", "short"),
    ("state", "State", "pill"),
    ("cell", "Running", "text"),
    ("user", "User", "short"),
    ("since", "Run time", "number"),
    ("pending", "Pending", "number"),
    ("next", "Why the next one waits", "text"),
    ("memory", "Memory used", "progress"),
    ("worker", "Worker", "short"),
    ("speed", "Speed", "number"),
    ("labels", "Labels", "text"),
)
HOST_COLUMNS = columns(
    ("host", "Host", "short"),
    ("state", "State", "pill"),
    ("devices", "Devices", "text"),
    ("busy", "Busy", "number"),
    ("memory", "Memory used", "progress"),
    ("link", "Link", "number"),
    ("received", "Received", "number"),
    ("sent", "Results sent", "number"),
    ("copies", "Second copies", "number"),
    ("losses", "Losses", "number"),
)
CORDONED_COLOUR = "#56B4E9"
HOST_STATE_WORDS = {"leaves": "is about to leave, and is emptied", "lost": "cannot be reached"}
HOST_STATE_COLOURS = {"serves": "#009E73", "leaves": CORDONED_COLOUR, "lost": "#D55E00"}
NUMA = "numa="


def running_on(queue: QueueView | None, device: str) -> list[RunningJob]:
    """Return the jobs that hold a device: its own, and gangs that have it as a member."""
    jobs = () if queue is None else queue.running
    return [job for job in jobs if job.device == device or device in job.members]


def waiting_for(queue: QueueView | None, device: str) -> list[WaitingJob]:
    """Return the jobs that wait for a device, by queue position: those bound to it, and those that any
    device may run."""
    jobs = () if queue is None else queue.waiting
    return [job for job in jobs if job.device in (device, None, "")]


def cell_names(jobs: Sequence[JobView], notebooks: Mapping[str, str]) -> dict[str, str]:
    """Name cells by job, with their notebooks where these are known. ``notebooks``: names by session."""
    return {
        job.job: " · ".join(filter(None, (job.cell or job.short_id, notebooks.get(job.session, ""))))
        for job in jobs
    }


def costs_of(costs: CostView | None, device: str) -> DeviceCosts | None:
    found = () if costs is None else costs.devices
    return next((one for one in found if one.device == device), None)


def state_words(device: DeviceView, queue: QueueView | None) -> str:
    """Say a device's state: ``idle``, ``busy, draining``, ``idle, cordoned``."""
    if not device.cordoned:
        return device.state
    drains = any(job.preempting for job in running_on(queue, device.device))
    return f"{device.state}, {'draining' if drains else 'cordoned'}"


def worker_words(device: DeviceView) -> str:
    """Say whether the device's worker processes live and answer, and how many were started again."""
    if device.failure is not None:
        return "does not start"
    words = {"lost": "lost", "starting": "starting", "silent": "alive, does not answer"}
    again = f", {counted(device.restarts, 'restart')}" if device.restarts else ""
    return words.get(device.state, "alive") + again


def device_rows(snapshot: Snapshot) -> list[dict[str, object]]:
    """List the devices in the pool's order."""
    status, queue = snapshot.status, snapshot.queue
    if status is None:
        return []
    names = cell_names(snapshot.jobs, snapshot.notebooks_by_session())
    return [_device_row(device, queue, snapshot.costs, names, status.now) for device in status.devices]


def _device_row(
    device: DeviceView,
    queue: QueueView | None,
    costs: CostView | None,
    names: Mapping[str, str],
    now: float,
) -> dict[str, object]:
    job = next(iter(running_on(queue, device.device)), None)
    waiting = waiting_for(queue, device.device)
    measured = costs_of(costs, device.device)
    rate = device.flops_per_s if measured is None else measured.flops_per_s
    running = job.job if job is not None else device.job
    colour = CORDONED_COLOUR if device.cordoned else DEVICE_STATE_COLOURS.get(device.state, "#7F8C99")
    return {
        "id": device.device,
        "device": device.device,
        "state": {"text": state_words(device, queue), "colour": colour},
        "cell": None if running is None else names.get(running, running[:8]),
        "user": None if job is None else job.user,
        "since": None if job is None or job.since is None else number_cell(job.run_s(now), whole_seconds),
        "pending": len(waiting) if queue is not None else device.queue_length,
        "next": waiting[0].why if waiting else None,
        "memory": _memory_cell(device),
        "worker": worker_words(device),
        "speed": number_cell(rate, lambda value: with_power(value, "FLOP/s")),
        "labels": ", ".join((*device.labels, *(f"taint {taint}" for taint in device.taints))),
    }


def host_rows(snapshot: Snapshot) -> list[dict[str, object]]:
    """List the hosts, in the order of their devices; none where the pool's own machine has all devices."""
    status = snapshot.status
    return [] if status is None else [_host_row(host, status.devices) for host in status.hosts]


def _host_row(host: HostView, devices: Sequence[DeviceView]) -> dict[str, object]:
    own = [device for device in devices if device.device in host.devices]
    return {
        "id": host.host,
        "host": host.host,
        "state": {"text": host.state, "colour": HOST_STATE_COLOURS[host.state]},
        "devices": ", ".join(host.devices),
        "busy": sum(device.state == "busy" for device in own),
        "memory": _used_cell(
            sum(device.used_bytes for device in own), sum(device.memory_bytes for device in own)
        ),
        "link": number_cell(host.link_bytes_per_s, lambda rate: f"{format_bytes(int(rate))}/s"),
        "received": number_cell(host.received_bytes, format_bytes),
        "sent": number_cell(host.sent_bytes, format_bytes),
        "copies": number_cell(host.second_copies_bytes, format_bytes),
        "losses": host.losses,
    }


def _memory_cell(device: DeviceView) -> dict[str, object]:
    return _used_cell(device.used_bytes, device.memory_bytes)


def _used_cell(used_bytes: int, limit_bytes: int) -> dict[str, object]:
    return {
        "done": used_bytes,
        "total": limit_bytes,
        "text": f"{format_bytes(used_bytes)} of {format_bytes(limit_bytes)}",
        "sort": used_bytes,
    }


def hosts_sentence(hosts: Sequence[HostView]) -> str:
    """Summarise the hosts in one sentence."""
    named = [f"; {host.host} {HOST_STATE_WORDS[host.state]}" for host in hosts if host.state != "serves"]
    return f"{counted(len(hosts), 'host')}{''.join(named)}."


def hosts_heading(status: PoolStatus) -> str:
    """Return the title above the hosts, with a link to their cluster's own page where it has one."""
    said = " ".join(filter(None, (hosts_sentence(status.hosts), status.node_requests)))
    title, page = heading("Hosts", said), escape(status.cluster_dashboard)
    if not page:
        return title
    return f"{title}<p><a href='{page}' target='_blank' rel='noopener'>Dashboard of the cluster</a></p>"


def devices_sentence(devices: Sequence[DeviceView]) -> str:
    """Summarise the devices in one sentence."""
    if not devices:
        return "The pool has no devices yet; they are starting."
    states = [device.state for device in devices]
    parts = [f"{states.count(state)} {state}" for state in DEVICE_STATE_COLOURS if state in states]
    cordoned = sum(device.cordoned for device in devices)
    closed = f"; {cordoned} cordoned" if cordoned else ""
    return f"{counted(len(devices), 'device')}: {', '.join(parts)}{closed}."
