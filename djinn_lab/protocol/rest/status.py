"""``/v1/status`` and ``/v1/events``: devices, load, versions, journal."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.resources import ForecastError
from djinn_lab.units import format_bytes


class DeviceView(msgspec.Struct, frozen=True):
    """Show a device. ``state``: ``starting``, ``idle``, ``busy`` or ``lost``. ``failure``: why its worker
    does not start. ``reserved_bytes``: for the cells that run, beside what sessions hold. ``labels``,
    ``taints``, ``price`` of a device-hour and ``watts`` when busy: as operators described it.
    ``own_labels``: those of the labels that the device has by itself. ``workers``: its processes by trust
    group, empty for one that is not any group's yet. ``host``: its name, where the pool has devices on
    several. ``sandbox``: the level that holds for its workers, empty before the first was there."""

    device: str
    kind: str = ""
    name: str = ""
    state: str = "starting"
    memory_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0
    threads: int = 0
    torch_version: str = ""
    flops_per_s: float | None = None
    job: str | None = None
    queue_length: int = 0
    pid: int | None = None
    restarts: int = 0
    session_bytes: dict[str, int] = {}
    failure: str | None = None
    cordoned: bool = False
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    price: float = 0.0
    own_labels: tuple[str, ...] = ()
    watts: float | None = None
    workers: dict[str, int] = {}
    host: str = ""
    reserved_bytes: int = 0
    sandbox: str = ""

    @property
    def reserved(self) -> str:
        """Return what follows the words for its used memory; nothing where nothing is reserved."""
        return f", {format_bytes(self.reserved_bytes)} reserved" if self.reserved_bytes else ""


class HostView(msgspec.Struct, frozen=True):
    """Show a host of a pool on several. ``state``: ``serves``, ``leaves`` (it is about to be taken away) or
    ``lost``. ``losses``: how often it was lost.
    ``received_bytes``: that it was sent; ``sent_bytes``: results that it sent. ``link_bytes_per_s``: at which
    tensors came to it lately. ``second_copies_bytes``: of sessions that other hosts parked."""

    host: str
    state: str
    devices: tuple[str, ...] = ()
    losses: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    link_bytes_per_s: float | None = None
    second_copies_bytes: int = 0


class BlobUsage(msgspec.Struct, frozen=True):
    """Count the uploaded tensors that the pool keeps, and their bytes."""

    count: int = 0
    bytes: int = 0


class PlanCacheUsage(msgspec.Struct, frozen=True):
    """Count how often submitted programs were known, in this life of the pool. ``hits``: equal to one that
    was checked and measured before, but for their data. ``misses``: the others; ``resized`` of these were
    equal to one but for the sizes of their tensors, so that only these were checked and measured. Of the
    different calls in those that missed ``calls_priced`` were new, and ``calls_known`` from another."""

    hits: int = 0
    misses: int = 0
    entries: int = 0
    resized: int = 0
    calls_priced: int = 0
    calls_known: int = 0


class PoolStatus(msgspec.Struct, frozen=True):
    """Show the pool. ``protocol_version``: the newest that it speaks, of ``protocol_versions``. ``jobs``: how
    many cells, by state, of the newest since its start. ``forecast_error``: of what cells take, as predicted
    from their graphs. ``event_loop_lag_s``: the worst delay of the last ten seconds. ``hosts``: none where
    the pool's own machine has all devices. ``warnings``: sentences for operators.
    ``cluster_dashboard``: URL of the page that the hosts' cluster has of itself, empty for none.
    ``node_requests``: on nodes that are asked for or given back, empty for none."""

    pool: str
    version: str = ""
    protocol_version: int = 0
    protocol_versions: tuple[int, ...] = ()
    started_at: float = 0.0
    uptime_s: float = 0.0
    now: float = 0.0
    user: str = ""
    role: str = ""
    ready: bool = False
    devices: tuple[DeviceView, ...] = ()
    sessions: int = 0
    jobs: dict[str, int] = {}
    blobs: BlobUsage = BlobUsage()
    plan_cache: PlanCacheUsage = PlanCacheUsage()
    event_loop_lag_s: float | None = None
    forecast_error: ForecastError | None = None
    users: int = 0
    hosts: tuple[HostView, ...] = ()
    warnings: tuple[str, ...] = ()
    cluster_dashboard: str = ""
    node_requests: str = ""


class JournalLine(msgspec.Struct, frozen=True):
    """Show an event of the journal. ``detail``: its fields, as JSON."""

    seq: int
    at: float
    event: str
    detail: msgspec.Raw
