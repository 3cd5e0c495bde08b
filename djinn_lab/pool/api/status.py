"""What the API answers: the pool's state as immutable values."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs import JobState
from djinn_lab.jobs.resources import ForecastError
from djinn_lab.memory.snapshot import (
    Counters,
    DeviceAccount,
    MemoryChange,
    HeldSegment,
    MemorySnapshot,
    SessionAccount,
    WakeUps,
)
from djinn_lab.pool.authentication import User
from djinn_lab.pool.devices.fleet import DeviceStatus
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.sessions.registry import Session, SessionView
from djinn_lab.protocol.messages import PROTOCOL_VERSION
from djinn_lab.protocol.version import VERSION


class DeviceReport(msgspec.Struct, frozen=True):
    """A device in the API. ``state``: ``starting``, ``idle``, ``busy`` or ``lost``. ``labels``, ``taints``,
    ``price``, ``watts``: what operators said about it; ``own_labels``: those of the labels that it has by
    itself."""

    device: str
    kind: str
    name: str
    state: str
    memory_bytes: int
    used_bytes: int
    peak_bytes: int
    threads: int
    torch_version: str
    flops_per_s: float | None
    memory_bytes_per_s: float | None
    op_overhead_s: float | None
    job: str | None
    queue_length: int
    pid: int | None
    restarts: int
    session_bytes: dict[str, int]
    failure: str | None
    cordoned: bool = False
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    price: float = 0.0
    own_labels: tuple[str, ...] = ()
    watts: float | None = None


class BlobsReport(msgspec.Struct, frozen=True):
    count: int
    bytes: int


class PlanCacheReport(msgspec.Struct, frozen=True):
    """How often a submitted program was equal to one that was checked and measured before."""

    hits: int
    misses: int
    entries: int


class StatusReport(msgspec.Struct, frozen=True):
    """The pool in the API. Times in seconds, ``now`` and ``started_at`` since the epoch. ``forecast_error``:
    of what cells take, foretold from their graphs."""

    pool: str
    version: str
    protocol_version: int
    started_at: float
    uptime_s: float
    now: float
    user: str
    role: str
    ready: bool
    devices: list[DeviceReport]
    sessions: int
    jobs: dict[str, int]
    blobs: BlobsReport
    plan_cache: PlanCacheReport
    event_loop_lag_s: float
    forecast_error: ForecastError | None = None


def status_report(driver: Driver, user: User, started_at: float, ready: bool, lag_s: float) -> StatusReport:
    now_s = driver.ledger.clock.now_s()
    counts = dict.fromkeys((state.value for state in JobState), 0)
    for record in driver.books.records.values():
        counts[record.state] += 1
    plans = driver.intake.plans
    return StatusReport(
        pool=driver.ledger.pool,
        version=VERSION,
        protocol_version=PROTOCOL_VERSION,
        started_at=started_at,
        uptime_s=now_s - started_at,
        now=now_s,
        user=user.name,
        role=user.role.label,
        ready=ready,
        devices=device_reports(driver),
        sessions=len(driver.registry),
        jobs=counts,
        blobs=BlobsReport(driver.blobs.count, driver.blobs.nbytes),
        plan_cache=PlanCacheReport(plans.hits, plans.misses, plans.entries),
        event_loop_lag_s=lag_s,
        forecast_error=driver.books.resources.graph_error,
    )


def device_reports(driver: Driver) -> list[DeviceReport]:
    queue = {view.device: view for view in driver.ledger.queue.devices()}
    lengths = driver.ledger.queue.line_lengths()
    infos = {info.device: info for info in driver.fleet.infos()}
    reports = []
    for status in driver.fleet.statuses:
        device = status.plan.device
        info, view, account = infos[device], queue.get(device), driver.ledger.accounts.device(device)
        running, health = view.running if view else None, driver.launcher.health(device)
        reports.append(
            DeviceReport(
                **msgspec.structs.asdict(info),
                state=_device_state(status, running),
                used_bytes=account.used_bytes if account else 0,
                peak_bytes=account.peak_bytes if account else 0,
                job=running,
                queue_length=lengths[device],
                pid=health.shown.get("pid"),
                restarts=health.restarts,
                session_bytes=dict(account.session_bytes) if account else {},
                failure=status.failure,
                cordoned=view.cordoned if view else False,
                labels=view.labels if view else (),
                taints=view.taints if view else (),
                price=view.price if view else 0.0,
                watts=view.watts if view else None,
                own_labels=view.own_labels if view else (),
            )
        )
    return reports


def session_view(driver: Driver, session: Session) -> SessionView:
    account = driver.ledger.accounts.session(session.session)
    return SessionView(
        session=session.session,
        user=session.user,
        name=session.name,
        device=driver.ledger.queue.device_of(session.session),
        state=account.connection.value if account else "detached",
        phase=account.phase.value if account else "IO_WAIT",
        used_bytes=driver.ledger.accounts.session_bytes(session.session),
        jobs=session.jobs,
        connected_at=session.connected_at,
        last_seen=session.last_seen,
    )


def _device_state(status: DeviceStatus, running: str | None) -> str:
    if status.ready is None:
        return "lost" if status.seen is not None or status.failure is not None else "starting"
    return "busy" if running is not None else "idle"


class NamedSession(SessionAccount, frozen=True):
    """A session in the API. ``name``: what its user called it; ``jobs``: how many cells it sent."""

    name: str = ""
    jobs: int = 0


class MemoryReport(msgspec.Struct, frozen=True):
    """Session memory in the API. ``now`` and every ``at_s``: seconds since the epoch by the pool's clock."""

    now: float
    policy: str
    devices: tuple[DeviceAccount, ...]
    sessions: tuple[NamedSession, ...]
    held: tuple[HeldSegment, ...]
    wake_ups: WakeUps
    counters: Counters
    happenings: tuple[MemoryChange, ...]


def memory_report(driver: Driver) -> MemoryReport:
    """What the accounts say now."""
    snapshot = driver.ledger.accounts.snapshot()
    known = {session.session: (session.name, session.jobs) for session in driver.registry}
    return name_sessions(snapshot, known, driver.ledger.clock.now_s())


def name_sessions(snapshot: MemorySnapshot, known: dict[str, tuple[str, int]], now_s: float) -> MemoryReport:
    """``known``: name and number of cells by session."""
    sessions = []
    for account in snapshot.sessions:
        name, jobs = known.get(account.session, ("", 0))
        sessions.append(NamedSession(**msgspec.structs.asdict(account), name=name, jobs=jobs))
    return MemoryReport(
        now=now_s,
        policy=snapshot.policy,
        devices=snapshot.devices,
        sessions=tuple(sessions),
        held=snapshot.held,
        wake_ups=snapshot.wake_ups,
        counters=snapshot.counters,
        happenings=snapshot.happenings,
    )
