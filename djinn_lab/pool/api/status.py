"""Make the answers about the pool's state: status, devices, sessions, session memory."""

from __future__ import annotations

from collections.abc import Container, Mapping

import msgspec

from djinn_lab.jobs import JobState
from djinn_lab.memory.snapshot import MemorySnapshot
from djinn_lab.pool.authentication import User
from djinn_lab.pool.devices.fleet import DeviceStatus
from djinn_lab.pool.execution.driver import Driver
from djinn_lab.pool.sessions.detached import DetachedRules, ends_at
from djinn_lab.pool.sessions.registry import ClientSession
from djinn_lab.protocol.messages import FETCH_CELL, POOL_VERSIONS, PROTOCOL_VERSION
from djinn_lab.protocol.rest.sessions import MemorySession, MemoryView, SessionView
from djinn_lab.protocol.rest.status import BlobUsage, DeviceView, HostView, PlanCacheUsage, PoolStatus
from djinn_lab.protocol.version import VERSION
from djinn_lab.srg.costs import price_use


def pool_status(
    driver: Driver, user: User, started_at: float, ready: bool, lag_s: float, users: int
) -> PoolStatus:
    now_s = driver.core.clock.now_s()
    counts = dict.fromkeys((state.value for state in JobState), 0)
    for record in driver.accounting.records.values():
        counts[record.state] += record.cell != FETCH_CELL
    return PoolStatus(
        pool=driver.core.pool,
        version=VERSION,
        protocol_version=PROTOCOL_VERSION,
        protocol_versions=POOL_VERSIONS,
        started_at=started_at,
        uptime_s=now_s - started_at,
        now=now_s,
        user=user.name,
        role=user.role.label,
        ready=ready,
        devices=tuple(device_views(driver)),
        sessions=len(driver.registry),
        jobs=counts,
        blobs=BlobUsage(driver.blobs.count, driver.blobs.nbytes),
        plan_cache=plan_cache_usage(driver),
        event_loop_lag_s=lag_s,
        forecast_error=driver.accounting.resources.graph_error,
        users=users,
        hosts=host_views(driver),
        cluster_dashboard=driver.launcher.cluster_dashboard(),
        node_requests=driver.node_requests,
        warnings=tuple(filter(None, (driver.core.queue.short_of_devices(),))),
    )


def host_views(driver: Driver) -> tuple[HostView, ...]:
    """Show every host of a pool on several."""
    return tuple(
        HostView(
            host=host.name,
            state="lost" if not host.serves else "leaves" if host.leaves else "serves",
            devices=host.devices,
            losses=host.losses,
            received_bytes=host.received_bytes,
            sent_bytes=host.sent_bytes,
            link_bytes_per_s=host.link_bytes_per_s,
            second_copies_bytes=host.second_copies_bytes,
        )
        for host in driver.launcher.hosts()
    )


def plan_cache_usage(driver: Driver) -> PlanCacheUsage:
    """Show how often submitted programs were known."""
    plans, prices = driver.submissions.plans, price_use()
    return PlanCacheUsage(plans.hits, plans.misses, plans.entries, plans.resized, prices.priced, prices.known)


def device_views(driver: Driver) -> list[DeviceView]:
    """Show every device of the pool."""
    queue = {view.device: view for view in driver.core.queue.devices()}
    lengths = driver.core.queue.queue_lengths()
    infos = {info.device: info for info in driver.fleet.infos()}
    found = []
    for status in driver.fleet.statuses:
        device = status.plan.device
        info, view, account = infos[device], queue.get(device), driver.core.accounts.device(device)
        running, health = view.running if view else None, driver.launcher.health(device)
        found.append(
            DeviceView(
                device=device,
                kind=info.kind,
                name=info.name,
                memory_bytes=info.memory_bytes,
                threads=info.threads,
                torch_version=info.torch_version,
                flops_per_s=None if info.curves is None else info.curves.flops_per_s,
                state=_device_state(status, running, health.answers),
                used_bytes=account.used_bytes if account else 0,
                reserved_bytes=account.reserved_bytes if account else 0,
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
                workers=dict(health.groups),
                sandbox="" if status.seen is None else status.seen.sandbox,
                host=status.plan.host,
            )
        )
    return found


def session_view(driver: Driver, session: ClientSession, rules: DetachedRules) -> SessionView:
    account = driver.core.accounts.session(session.session)
    return SessionView(
        session=session.session,
        user=session.user,
        name=session.name,
        device=driver.core.queue.device_of(session.session),
        state="away" if session.awaited else account.connection.value if account else "detached",
        phase=account.phase.value if account else "IO_WAIT",
        used_bytes=driver.core.accounts.session_bytes(session.session),
        jobs=session.jobs,
        connected_at=session.connected_at,
        last_seen=session.last_seen,
        ends_at=ends_at(driver, session, rules),
    )


def _device_state(status: DeviceStatus, running: str | None, answers: bool) -> str:
    if status.ready is None:
        return "lost" if status.seen is not None or status.failure is not None else "starting"
    if not answers:
        return "silent"
    return "busy" if running is not None else "idle"


def memory_view(driver: Driver) -> MemoryView:
    """Show session memory as the accounts have it now."""
    snapshot = driver.core.accounts.snapshot()
    known = {session.session: (session.name, session.jobs) for session in driver.registry}
    away = {session.session for session in driver.registry if session.awaited}
    return name_sessions(snapshot, known, driver.core.clock.now_s(), away)


def name_sessions(
    snapshot: MemorySnapshot,
    known: Mapping[str, tuple[str, int]],
    now_s: float,
    away: Container[str] = (),
) -> MemoryView:
    """``known``: name and number of cells by session. ``away``: those whose client may come back."""
    sessions = []
    for account in snapshot.sessions:
        name, jobs = known.get(account.session, ("", 0))
        is_away = account.session in away
        sessions.append(MemorySession(**msgspec.structs.asdict(account), name=name, jobs=jobs, away=is_away))
    return MemoryView(
        now=now_s,
        policy=snapshot.policy,
        devices=snapshot.devices,
        sessions=tuple(sessions),
        deferred=snapshot.deferred,
        wake_ups=snapshot.wake_ups,
        counters=snapshot.counters,
        happenings=snapshot.happenings,
    )
