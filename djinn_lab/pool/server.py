"""The pool's process: starts workers, serves, becomes ready, stops cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa

from djinn_lab.config.fields import BUILT_IN_ESTIMATOR
from djinn_lab.errors import CannotStartNow, PoolError
from djinn_lab.jobs.autoscaling import ScalingLimits
from djinn_lab.jobs.decision import QueuePolicy
from djinn_lab.memory import POLICIES
from djinn_lab.pool.blobs.directory import (
    END_WITHIN_S,
    PARKED,
    POLL_S,
    Belonging,
    default_bytes_max,
    left_directories,
    note_lead,
    open_blob_directory,
    own_directory,
    remove_directory,
)
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.certificates import ServerCertificate
from djinn_lab.pool.context import spare_full_collections
from djinn_lab.pool.database.engine import lost, unusable
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.identity.settings import IdentitySettings
from djinn_lab.pool.launchers.adoption import LeftCopy
from djinn_lab.pool.launchers.local import LocalLauncher
from djinn_lab.pool.launchers.pool_launcher import PoolLauncher
from djinn_lab.pool.sessions.detached import KEPT_S, DetachedRules
from djinn_lab.pool.start_settings import settings_of
from djinn_lab.pool.user_limits import UserLimits
from djinn_lab.protocol.isolation import ISOLATION_DEFAULT, Isolation
from djinn_lab.protocol.messages import PROTOCOL_VERSION
from djinn_lab.protocol.runtime_file import (
    RuntimeInfo,
    data_directory,
    note_start_waits,
    read_crashed,
    read_runtime,
    remove_runtime,
    runtime_directory,
    supervisor_process,
    write_runtime,
)
from djinn_lab.protocol.version import VERSION
from djinn_lab.system.host import host_id

if TYPE_CHECKING:
    from djinn_lab.pool.api.web_server import StandbyApp, WebServer
    from djinn_lab.pool.database.sessions import LeftSession
    from djinn_lab.pool.database.store import Store
    from djinn_lab.pool.devices.fleet import Fleet
    from djinn_lab.pool.launchers.ray_cluster.cluster import Cluster

LOOPBACK = "127.0.0.1"
NOTEBOOKS = "notebooks"
BACKLOG = 2048
GRACE_S = 2
SWITCH_INTERVAL_S = 0.0001
"""How long the event loop may wait for the interpreter when another thread (the database's) has it."""
OTHER_HOSTS_WITHIN_S = 20.0
"""So long after one host is ready a pool waits for the next one before it begins without."""

log = logging.getLogger(__name__)


class PoolOptions(msgspec.Struct, frozen=True):
    """``port`` 0: any free one. ``blob_bytes_max`` None: half of the free shared memory. ``memory_policy``:
    its name in :data:`djinn_lab.memory.POLICIES`. ``queue_policy``: itself, or its name in
    :data:`djinn_lab.jobs.decision.POLICIES`. ``notebooks_for``: users that may submit notebooks, in
    :data:`djinn_lab.protocol.notebooks.OPEN_TO`; ``notebook_slots`` of them run at once,
    and write files with ``notebook_umask``. ``host``: the address to listen on. ``certificate``: None to
    talk in the clear. ``detached_s``: for so long a session waits for its vanished client.
    ``accept_weak_isolation``: let several users in where the sandbox of workers does not hold.
    ``identity``: the identity providers whose users may come. ``cost_estimator``: its name, as of
    :func:`djinn_lab.pool.devices.estimator_plugin.load_estimator`. ``cluster``: on whose nodes the
    devices are; None for those of this machine. ``scaling``: ask the cluster for nodes within these
    limits."""

    plans: Sequence[DevicePlan]
    worker_command: Sequence[str] | None
    database: str
    port: int = 0
    blob_bytes_max: int | None = None
    memory_policy: str = "default"
    queue_policy: str | QueuePolicy = "default"
    notebook_slots: int = 2
    notebooks_for: str = "owner"
    notebook_umask: int = 0o022
    standby: bool = False
    host: str = LOOPBACK
    certificate: ServerCertificate | None = None
    limits: UserLimits = UserLimits()
    detached_s: float = KEPT_S
    isolation: Isolation = ISOLATION_DEFAULT
    accept_weak_isolation: bool = False
    identity: IdentitySettings = IdentitySettings()
    cost_estimator: str = BUILT_IN_ESTIMATOR
    cluster: Cluster | None = None
    scaling: ScalingLimits | None = None


def run_pool(options: PoolOptions) -> None:
    """Serve until SIGTERM, SIGINT or a shutdown request. Raises PoolError when the pool cannot start."""
    signal.signal(signal.SIGTERM, _leave)
    log.info("the pool is starting")
    pool = uuid.uuid4().hex[:12]
    belonging = Belonging.of(options.database, options.detached_s)
    directory = open_blob_directory(pool, runtime_directory(), belonging)
    try:
        disk = own_directory(data_directory() / PARKED, pool, belonging)
    except CannotStartNow:
        remove_directory(directory)
        raise
    places = PoolDirectories(directory, disk, belonging)
    launcher = _launcher(options, pool, places)
    try:
        if not options.standby:
            _warm(launcher, options)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        asyncio.run(_serve(options, pool, places, launcher))
    except OSError as error:
        if places.served:
            raise
        log.info("the start failed", exc_info=True)
        raise CannotStartNow(
            f"The pool cannot start: {error}.",
            f"Is there space in {runtime_directory()}, {data_directory()} and {directory.parent}?",
        ) from error
    finally:
        launcher.kill()
        if not places.needed:
            remove_runtime(os.getpid())
            remove_directory(directory)
            remove_directory(disk)


@dataclass(slots=True)
class PoolDirectories:
    """The directories of this run of the pool. ``needed``: by a next one, since this one led and was not
    stopped. ``served``: it was ready."""

    blobs: Path
    disk: Path
    belonging: Belonging
    needed: bool = False
    served: bool = False

    def take_lead(self) -> list[Path]:
        """List the directories that dead pools on the same database left, for this one to take over."""
        parents = (self.blobs.parent, self.disk.parent)
        left = [path for parent in parents for path in left_directories(parent, self.belonging)]
        note_lead(self.blobs)
        return left


def _launcher(options: PoolOptions, pool: str, places: PoolDirectories) -> PoolLauncher:
    blobs = places.blobs
    if options.cluster is None:
        return LocalLauncher(blobs, options.worker_command, blobs / PARKED, places.disk)
    from djinn_lab.pool.launchers.ray_cluster.launcher import RayLauncher

    elastic = options.scaling is not None
    return RayLauncher(options.cluster, pool, blobs, places.belonging, options.worker_command, elastic)


def _warm(launcher: PoolLauncher, options: PoolOptions) -> None:
    """Let the workers load while the server does."""
    for plan in options.plans:
        launcher.warm(plan)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM before the event loop runs; it takes the signal over later."""
    raise SystemExit(0)


async def _serve(options: PoolOptions, pool: str, places: PoolDirectories, launcher: PoolLauncher) -> None:
    # Imported while the workers load, which takes longer.
    from djinn_lab.pool.api.web_server import StandbyApp, WebServer
    from djinn_lab.pool.authentication import new_token
    from djinn_lab.pool.database.store import Store

    stopped = asyncio.Event()
    before = await asyncio.to_thread(_crashed)
    listener = _listen(options.host, options.port, before)
    name = f"{pool} on {socket.gethostname()[:24]}, process {os.getpid()}"
    store = Store(options.database, name, options.standby, _note_full)
    front = StandbyApp(lambda: store.leader)
    server = WebServer(front, GRACE_S, options.certificate)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    serving = loop.create_task(server.serve(sockets=[listener]), name="serve")
    info = RuntimeInfo(
        url=_local_url(options, listener),
        token=before.token if before is not None else new_token(),
        pool=pool,
        pid=os.getpid(),
        host=host_id(),
        version=VERSION,
        protocol_version=PROTOCOL_VERSION,
        started_at=time.time(),
        standing_by=options.standby,
        settings=settings_of(options),
        certificate=options.certificate.pem if options.certificate else "",
        arguments=tuple(sys.argv[1:]),
        supervised=supervisor_process() == os.getppid(),
    )
    running = ServingPool(options, launcher, store, front, server, serving, stopped)
    try:
        if await _until_leading(running, info):
            await _lead(running, msgspec.structs.replace(info, standing_by=False), places)
    except sa.exc.SQLAlchemyError as error:
        await launcher.close(at_once=True)  # no client is there for what it computes
        raise (lost if places.served else unusable)(options.database, error) from error
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        await asyncio.to_thread(store.close)


@dataclass(slots=True)
class ServingPool:
    """Hold the parts of the process."""

    options: PoolOptions
    launcher: PoolLauncher
    store: Store
    front: StandbyApp
    server: WebServer
    serving: asyncio.Task[None]
    stopped: asyncio.Event


async def _until_leading(running: ServingPool, info: RuntimeInfo) -> bool:
    """Wait until this pool leads on its database; False when asked to stop before. Raises PoolError when the
    database cannot be used."""
    store, stopped = running.store, running.stopped
    try:
        await _first(_done(store.leads), _done(store.waits), stopped.wait(), running.serving)
        if running.options.standby and not store.leads.done() and not stopped.is_set():
            write_runtime(info)
            log.info("pool %s stands by for %s at %s", info.pool, store.leader, info.url)
        await _first(_done(store.leads), stopped.wait(), running.serving)
    except (sa.exc.SQLAlchemyError, ImportError) as error:
        raise unusable(running.options.database, error) from error
    return store.leads.done()


async def _lead(running: ServingPool, info: RuntimeInfo, places: PoolDirectories) -> None:
    """Serve until asked to stop. Raises SQLAlchemyError when the database, and so the lead, is lost."""
    from djinn_lab.pool.api.app import create_app
    from djinn_lab.pool.assembly import assemble
    from djinn_lab.pool.bookkeeping.operator_settings import read_settings, restore_settings
    from djinn_lab.pool.notebooks.service import NotebookRules
    from djinn_lab.pool.sessions.isolation import IsolationRules

    options, launcher, stopped = running.options, running.launcher, running.stopped
    if options.standby:
        log.info("pool %s takes over", info.pool)
        _warm(launcher, options)
    places.needed = True
    left = places.take_lead()
    blobs = BlobStore(places.blobs, options.blob_bytes_max or default_bytes_max(places.blobs))
    blobs.take_over(path for path in left if path.parent == places.blobs.parent)
    policy = POLICIES[options.memory_policy]
    notebooks = NotebookRules(options.notebook_slots, options.notebooks_for, options.notebook_umask)
    context = assemble(
        info.pool,
        info.token,
        launcher,
        options.plans,
        blobs,
        running.store,
        stopped.set,
        policy,
        options.queue_policy,
        notebooks,
        options.limits,
        DetachedRules(options.detached_s),
        IsolationRules(options.isolation, options.accept_weak_isolation),
        options.identity,
        lambda sessions: launcher.take_over(left_copies(sessions), left),
        options.cost_estimator,
        options.scaling,
    )
    for path in left:
        remove_directory(path)
    running.front.app = create_app(context)
    for plan in options.plans:
        launcher.spawn(plan, context.driver)
    log.info("the workers of %s are starting", ", ".join(plan.device for plan in options.plans))
    heartbeat = asyncio.get_running_loop().create_task(context.heartbeat.run(), name="heartbeat")
    ended = asyncio.ensure_future(_done(running.store.ended))
    try:
        if await _until_ready(context.driver.fleet, stopped, ended, options.cluster is not None):
            restore_settings(context.driver, await running.store.read(read_settings))
            context.ready = True
            await context.notebooks.start(info.url, data_directory() / NOTEBOOKS, info.certificate)
            write_runtime(info)
            places.served = True
            note_start_waits("")
            spare_full_collections()
            context.driver.accounting.audit.note(
                "", "pool started", f"process {info.pid} on {socket.gethostname()}"
            )
            log.info("pool %s is ready at %s", info.pool, info.url)
            await _first(stopped.wait(), running.serving, heartbeat, ended)
    except sa.exc.SQLAlchemyError:
        await launcher.close(at_once=True)
        raise
    finally:
        ended.cancel()
        places.needed = not stopped.is_set()
        context.driver.stop(for_good=stopped.is_set())
        await context.notebooks.stop()
        running.server.should_exit = True
        await asyncio.gather(running.serving, return_exceptions=True)
        heartbeat.cancel()
        await asyncio.gather(heartbeat, ended, return_exceptions=True)
        await launcher.close(at_once=places.needed)
        context.driver.accounting.audit.flush(everything=True)
        context.driver.accounting.audit.note("", "pool stopped")
        context.heartbeat.save()


def _note_full(full: str) -> None:
    note_start_waits(f"the pool's database has no space ({full})" if full else "")


def left_copies(sessions: Sequence[LeftSession]) -> dict[str, LeftCopy]:
    """Return the last whole copies of sessions that a dead pool left, as the launcher takes them."""
    return {
        one.stored.session: LeftCopy(one.origin.group, one.manifest)
        for one in sessions
        if one.origin is not None and one.manifest is not None
    }


async def _done(future: Future[int] | Future[None]) -> None:
    """Wait for what a thread does, and raise what it raised. Cancelling the wait does not stop the thread."""
    await asyncio.shield(asyncio.wrap_future(future))


async def _until_ready(
    fleet: Fleet, stopped: asyncio.Event, ended: asyncio.Future[None], several_hosts: bool
) -> bool:
    """Wait for every worker; False when asked to stop before. Where there are ``several_hosts``, the last
    ones may come later. Raises PoolError when one cannot start, and what ``ended`` raises."""
    while not fleet.all_ready:
        if fleet.failures:
            raise PoolError("; ".join(fleet.failures))
        if stopped.is_set():
            return False
        fleet.changed.clear()
        waits: list[Awaitable[object]] = [fleet.changed.wait(), stopped.wait(), ended]
        if several_hosts and fleet.any_ready:
            waits.append(asyncio.sleep(OTHER_HOSTS_WITHIN_S))
        await _first(*waits)
        if several_hosts and fleet.any_ready and not fleet.changed.is_set() and not stopped.is_set():
            absent = [one.plan.device for one in fleet.statuses if one.ready is None]
            log.warning("the pool begins without the hosts of %s", ", ".join(absent))
            return True
    return True


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for the first of these to end, and raise what it raised. Coroutines among the others are
    cancelled."""
    own = [asyncio.ensure_future(wait) for wait in waits]
    done, _ = await asyncio.wait(own, return_when=asyncio.FIRST_COMPLETED)
    for task, wait in zip(own, waits, strict=True):
        if task is not wait and not task.done():
            task.cancel()
    for task in done:
        task.result()


def _local_url(options: PoolOptions, listener: socket.socket) -> str:
    """Return how programs on this machine reach the pool."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address(LOOPBACK if address.version == 4 else "::1")
    scheme = "https" if options.certificate else "http"
    return f"{scheme}://{f'[{address}]' if address.version == 6 else address}:{port}"


def _crashed() -> RuntimeInfo | None:
    """Return the pool before this one, if it crashed. One that was just killed may take a moment to end."""
    deadline_s = time.monotonic() + END_WITHIN_S
    while read_runtime() is not None and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    return read_crashed()


def _listen(host: str, port: int, before: RuntimeInfo | None) -> socket.socket:
    """Listen; early connections are answered once the pool serves. ``before``: a pool that crashed, whose
    port is used again where any will do. Raises PoolError when the port is taken, or the address is not this
    machine's."""
    if not port and before is not None and (last := urlsplit(before.url).port):
        with contextlib.suppress(PoolError):
            return _listen(host, last, None)
    family, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][::4]
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or asyncio sets no NODELAY
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PoolError(
            f"Port {port} of {host} cannot be used: {error}.", "Choose another, or 0 for any free one."
        ) from None
    return listener
