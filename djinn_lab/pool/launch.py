"""Starts and stops this user's pool, from any process of that user."""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from djinn_lab.errors import CannotStartNow, OptionError, PoolError
from djinn_lab.memory import POLICIES
from djinn_lab.pool import supervisor
from djinn_lab.pool.certificates import encrypts
from djinn_lab.pool.database.address import DATABASE_VARIABLE, checked_url, shown, sqlite_url
from djinn_lab.pool.database.engine import DATABASE_FILE
from djinn_lab.pool.devices.estimator_plugin import load_estimator
from djinn_lab.pool.devices.plans import check_host_bytes, checked_region_compiler, plan_devices
from djinn_lab.pool.engines import LOCAL_ENGINE, RAY_ENGINE, START_WITHIN_S, check_engine, check_nodes
from djinn_lab.pool.policy_file import read_policy
from djinn_lab.protocol.certificates import pinned_context
from djinn_lab.protocol.compiling import BUILT_IN_COMPILERS, INDUCTOR
from djinn_lab.protocol.configured_start import remember_start
from djinn_lab.protocol.isolation import ISOLATIONS
from djinn_lab.protocol.notebooks import OPEN_TO
from djinn_lab.protocol.runtime_file import (
    SUPERVISOR_FILE,
    RuntimeInfo,
    check_writable,
    data_directory,
    read_crashed,
    read_runtime,
    remove_runtime,
    runtime_directory,
    start_waits_for,
    supervisor_process,
    unwritable,
)
from djinn_lab.system.liveness import process_is_alive
from djinn_lab.system.locks import try_lock

LOCK_FILE = "start.lock"
LOG_FILE = "pool.log"
LOG_BYTES_MAX = 10 * 2**20
LOG_TAIL_LINES = 20
POLL_S = 0.02
ALIVE_TIMEOUT_S = 5.0
STOP_GRACE_S = 10.0
END_WITHIN_S = 2.0
"""A pool that was just killed may live for so long."""
SAY_EVERY_S = 15.0
LOOPBACK = "127.0.0.1"


def start_pool(
    *,
    devices: str | None = None,
    memory_bytes: int | None = None,
    threads: int | None = None,
    engine: str | None = None,
    address: str | None = None,
    nodes_max: int | None = None,
    nodes_idle_s: float | None = None,
    port: int = 0,
    wait_s: float | None = None,
    worker_command: Sequence[str] | None = None,
    blob_bytes_max: int | None = None,
    host_bytes: int | None = None,
    disk_bytes: int = 0,
    link_bytes_per_s: int | None = None,
    memory_policy: str | None = None,
    queue_policy: str | None = None,
    cost_estimator: str | None = None,
    region_compiler: str | None = None,
    notebook_slots: int | None = None,
    notebooks_for: str | None = None,
    database: str | None = None,
    standby: bool = False,
    host: str = LOOPBACK,
    tls: bool | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    insecure_without_tls: bool = False,
    sessions_per_user: int | None = None,
    connections_per_user: int | None = None,
    upload_bytes_per_user: int | None = None,
    requests_per_s: float | None = None,
    detached_s: float | None = None,
    isolation: str | None = None,
    accept_weak_isolation: bool = False,
    identity: str | None = None,
    restart: bool = True,
    remembered: Sequence[str] | None = None,
) -> RuntimeInfo:
    """Find the running pool, or start one and wait until it is ready, or stands by. It outlives the caller.
    Options are checked in any case; a pool that runs keeps its own
    (:func:`djinn_lab.pool.start_settings.without_effect`).

    ``devices``: ``"auto"``, ``"cuda"`` or ``"cpu:N"``. Sizes are per device; see
    :func:`djinn_lab.pool.devices.plans.plan_devices`. ``engine``: one of
    :data:`djinn_lab.pool.engines.ENGINES`; with ``ray`` the devices are those of each node of the cluster at
    ``address`` (None: one that is started here). ``nodes_max``: ask that cluster for nodes, up to so many in
    all; those that are idle for ``nodes_idle_s`` are given back. ``memory_policy``: a name in
    :data:`djinn_lab.memory.POLICIES`, ``queue_policy`` in :data:`djinn_lab.jobs.decision.POLICIES`, or the
    path of one (:mod:`djinn_lab.pool.policy_file`). ``cost_estimator``: the name of an installed one
    (:func:`djinn_lab.pool.devices.estimator_plugin.load_estimator`), ``region_compiler`` of another
    (:func:`djinn_lab.pool.devices.plans.checked_region_compiler`). ``notebook_slots``: batch notebooks that
    run at once, ``notebooks_for``: users that may submit them. ``database``: a URL, in place of
    ``DJINN_DATABASE`` or of a file. ``standby``: wait while another pool leads on that database. ``host``:
    the address to listen on. ``tls``: encrypt, which is the default for addresses that other machines reach;
    by ``tls_certificate`` and ``tls_key``, else by a certificate that is made once. ``insecure_without_tls``:
    those machines may talk in the clear. ``isolation``: one of
    :data:`djinn_lab.protocol.isolation.ISOLATIONS`. ``accept_weak_isolation``: let several users in where the
    sandbox of workers does not hold. ``detached_s``: for so long a session waits for its vanished client.
    ``identity``: the identity providers, as
    :meth:`djinn_lab.pool.identity.settings.IdentitySettings.encoded`. ``restart``: start the server again
    when it crashes (:mod:`djinn_lab.pool.supervisor`). ``remembered``: the options with which a user
    asked for it (:mod:`djinn_lab.protocol.configured_start`); None: no user did. Limits of a user:
    :class:`djinn_lab.pool.user_limits.UserLimits`. Raises OptionError, or PoolError with the end of the
    server's log when it does not become ready within ``wait_s``."""
    check_engine(engine, address)
    check_nodes(address, nodes_max, nodes_idle_s)
    wait_s = START_WITHIN_S[engine or LOCAL_ENGINE] if wait_s is None else wait_s
    deadline_s = time.monotonic() + wait_s
    here = engine != RAY_ENGINE
    url = database or os.environ.get(DATABASE_VARIABLE)
    environment = os.environ | ({DATABASE_VARIABLE: checked_url(url)} if url else {})
    compiler = INDUCTOR if region_compiler is None else checked_region_compiler(region_compiler)
    plans = plan_devices(devices, memory_bytes, threads, region_compiler=compiler) if here else []
    _check_policies(memory_policy, queue_policy, notebooks_for)
    if cost_estimator is not None:
        load_estimator(cost_estimator)
    if compiler not in BUILT_IN_COMPILERS:
        from djinn_lab.pool.launchers.region_compiler import check_compiler

        check_compiler(compiler)
    encrypted = encrypts(host, tls, tls_certificate, tls_key, insecure_without_tls)
    if isolation is not None and isolation not in ISOLATIONS:
        raise OptionError(
            f"--isolation {isolation!r} is unknown.",
            f"Use one of {', '.join(ISOLATIONS)}.",
        )
    with _start_lock(deadline_s):
        found = _found(deadline_s, wait_s)
        if found is not None:
            return found
        check_writable()
        check_host_bytes(plans, host_bytes)
        if plans:  # a server that is started again after a crash has the same sizes, whatever is free then
            host_bytes = plans[0].host_bytes if host_bytes is None else host_bytes
            if plans[0].kind == "cpu":
                memory_bytes = plans[0].memory_bytes
        arguments = {
            "--devices": devices,
            "--memory-bytes": memory_bytes,
            "--threads": threads,
            "--engine": engine,
            "--address": address,
            "--nodes-max": nodes_max,
            "--nodes-idle-s": nodes_idle_s,
            "--port": port,
            "--worker-command": shlex.join(worker_command) if worker_command else None,
            "--blob-bytes-max": blob_bytes_max,
            "--host-bytes": host_bytes,
            "--disk-bytes": disk_bytes,
            "--link-bytes-per-s": link_bytes_per_s,
            "--memory-policy": memory_policy,
            "--queue-policy": queue_policy,
            "--cost-estimator": cost_estimator,
            "--region-compiler": region_compiler,
            "--notebook-slots": notebook_slots,
            "--notebooks-for": notebooks_for,
            "--isolation": isolation,
            "--identity": identity,
            "--host": host,
            "--tls-certificate": tls_certificate,
            "--tls-key": tls_key,
            "--sessions-per-user": sessions_per_user,
            "--connections-per-user": connections_per_user,
            "--upload-bytes-per-user": upload_bytes_per_user,
            "--requests-per-s": requests_per_s,
            "--detached-s": detached_s,
        }
        options = [f"{name}={value}" for name, value in arguments.items() if value is not None]
        flags = {"--standby": standby, "--tls": encrypted, "--accept-weak-isolation": accept_weak_isolation}
        options += [name for name, wanted in flags.items() if wanted]
        begins_at = _log_bytes()
        process = _spawn(options, environment, restart)
        info = _wait_until_ready(process, deadline_s, wait_s, begins_at)
        if remembered is not None:
            remember_start(remembered)
        return info


def start_again(wait_s: float | None = None) -> RuntimeInfo | None:
    """Start the pool that crashed here as it was, and wait until it is ready; one that runs is found. None
    where none crashed. Raises PoolError, also where it would have another database now."""
    wait_s = START_WITHIN_S[LOCAL_ENGINE] if wait_s is None else wait_s
    deadline_s = time.monotonic() + wait_s
    with _start_lock(deadline_s):
        found = _found(deadline_s, wait_s)
        if found is not None:
            return found
        crashed = read_crashed()
        if crashed is None or not crashed.arguments:
            return None
        given = os.environ.get(DATABASE_VARIABLE)
        database = shown(checked_url(given) if given else sqlite_url(data_directory() / DATABASE_FILE))
        if database != crashed.settings.get("database"):
            raise PoolError(
                f"The pool that crashed here had the database {crashed.settings.get('database')}, and now it "
                f"would have {database}.",
                f"Set {DATABASE_VARIABLE} to that one again, or give the pool up with: djinn-lab pool stop",
            )
        check_writable()
        begins_at = _log_bytes()
        process = _spawn(crashed.arguments, os.environ, crashed.supervised)
        return _wait_until_ready(process, deadline_s, wait_s, begins_at)


def _found(deadline_s: float, wait_s: float) -> RuntimeInfo | None:
    """Return the pool that runs, or once it is ready the one that is being started again."""
    running = running_pool()
    if running is None and supervisor_process() is not None:
        return _wait_until_ready(None, deadline_s, wait_s, begins_at=0)
    return running


def _check_policies(memory_policy: str | None, queue_policy: str | None, notebooks_for: str | None) -> None:
    if memory_policy is not None and memory_policy not in POLICIES:
        raise OptionError(
            f"{memory_policy!r} is not a policy of session memory.", f"Use one of {', '.join(POLICIES)}."
        )
    if queue_policy is not None:
        read_policy(queue_policy)
    if notebooks_for is not None and notebooks_for not in OPEN_TO:
        raise OptionError(
            f"--notebooks-for {notebooks_for!r} is unknown.",
            f"Use one of {', '.join(OPEN_TO)}.",
        )


def running_pool() -> RuntimeInfo | None:
    """Find the pool of the runtime file, if it listens. The file is removed where another process has the
    number of its pool; that of a pool that crashed stays for the next one."""
    info = read_runtime()
    if info is None or _listens(info):
        return info
    deadline_s = time.monotonic() + END_WITHIN_S
    while process_is_alive(info.pid):
        if time.monotonic() > deadline_s:
            remove_runtime(info.pid)
            break
        time.sleep(POLL_S)
    return None


def stop_pool(wait_s: float = 10) -> bool:
    """Stop the running pool, and return whether there was one; one that crashed is given up. Raises PoolError
    when it does not end within ``wait_s``."""
    info, supervisor = running_pool(), supervisor_process()
    pids = [pid for pid in (supervisor, None if info is None else info.pid) if pid is not None]
    with contextlib.suppress(ProcessLookupError):
        for pid in pids[:1]:
            os.kill(pid, signal.SIGTERM)  # a supervisor stops its server
    deadline_s = time.monotonic() + wait_s
    while left := [pid for pid in pids if process_is_alive(pid)]:
        if time.monotonic() > deadline_s:
            numbers = " ".join(map(str, left))
            raise PoolError(
                f"The pool (process {numbers}) has not stopped within {wait_s:.0f} s.",
                f"See {runtime_directory() / LOG_FILE}, or end it with: kill -9 {numbers}",
            )
        time.sleep(POLL_S)
    crashed = read_crashed()
    if crashed is not None:
        remove_runtime(crashed.pid)
    return bool(pids) or crashed is not None


@contextlib.contextmanager
def _start_lock(deadline_s: float) -> Iterator[None]:
    """Held by one starting process at a time; the others wait and then find the pool."""
    path = runtime_directory() / LOCK_FILE
    try:
        opened = path.open("w")
    except OSError as error:
        raise unwritable(path, error) from None
    with opened as file:
        while not try_lock(file):
            if time.monotonic() > deadline_s:
                raise PoolError(
                    "Another process is starting a pool and holds the lock.",
                    "Try again, or look at that process.",
                )
            time.sleep(POLL_S)
        yield


def _spawn(
    arguments: Sequence[str], environment: Mapping[str, str], restart: bool
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "djinn_lab.pool", *arguments]
    if restart:
        lock = str(runtime_directory() / SUPERVISOR_FILE)
        command = [sys.executable, "-S", "-E", supervisor.__file__, lock, *command]
    path = _log_path()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "ab") as log_file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            env=environment,
            start_new_session=True,
        )


def _wait_until_ready(
    process: subprocess.Popen[bytes] | None, deadline_s: float, wait_s: float, begins_at: int
) -> RuntimeInfo:
    """Wait for the pool that ``process`` starts; None: that a supervisor starts again. ``begins_at``: the
    byte of the log where what it says begins."""
    says_s = time.monotonic() + SAY_EVERY_S
    while time.monotonic() < deadline_s:
        if time.monotonic() > says_s:
            says_s += SAY_EVERY_S
            line = start_waits_for() or _log_tail(begins_at).rpartition("\n")[2]
            print(f"The pool is starting. What it said last: {line or 'nothing yet'}", file=sys.stderr)
        info = read_runtime()
        if info is not None:
            if process is not None:
                process.returncode = 0  # it is not ours to wait for any more
            return info
        if (process is None and supervisor_process() is None) or (process and process.poll() is not None):
            raise PoolError("The pool could not start. The end of its log:\n" + _log_tail(begins_at))
        time.sleep(POLL_S)
    if process is not None:
        process.terminate()
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    elif waits_for := start_waits_for():
        raise CannotStartNow(
            f"The pool is down after a crash, and could not start within {wait_s:.0f} s: {waits_for}",
            "It starts by itself as soon as that is mended; `djinn-lab pool stop` gives it up.",
        )
    said = _log_tail(begins_at)
    raise PoolError(f"The pool was not ready within {wait_s:.0f} s. The end of its log:\n{said}")


def _listens(info: RuntimeInfo) -> bool:
    """Return whether something that may be a pool has the port; one that is too busy to answer counts."""
    address = urlsplit(info.url)
    place = (address.hostname or "", address.port)
    connection = http.client.HTTPConnection(*place, timeout=ALIVE_TIMEOUT_S)
    if info.certificate:
        pinned = pinned_context(info.certificate)
        connection = http.client.HTTPSConnection(*place, timeout=ALIVE_TIMEOUT_S, context=pinned)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/v1/alive")
            return connection.getresponse().status == 200
        except TimeoutError:
            return True
        except (OSError, http.client.HTTPException):
            return False


def _log_path() -> Path:
    path = runtime_directory() / LOG_FILE
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
    return path


def _log_bytes() -> int:
    path = _log_path()
    return path.stat().st_size if path.exists() else 0


def _log_tail(begins_at: int) -> str:
    """Return the last lines of the log from a byte on."""
    with _log_path().open("rb") as log_file:
        log_file.seek(begins_at)
        lines = log_file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_TAIL_LINES:])
