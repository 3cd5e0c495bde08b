"""Find a pool, or start this machine's, and open a session; calls that open one by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves

from djinn_lab.capture.lazy import is_lazy, recorder_of
from djinn_lab.client.addresses import leader_url, restart_under_way
from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.credentials import TOKEN_VARIABLE, token_source
from djinn_lab.client.outcomes import recorded_outcome
from djinn_lab.client.requests import POOL_VARIABLE
from djinn_lab.client.session import Session, newest_session
from djinn_lab.config import Profile, default_profile, load_profile
from djinn_lab.errors import AuthenticationError, OptionError, PoolNotFound, PoolSilent, UserError
from djinn_lab.protocol.configured_start import remembered_start, start_command
from djinn_lab.protocol.messages import PhaseAnswered
from djinn_lab.protocol.runtime_file import RuntimeInfo, read_crashed, read_runtime, supervisor_process
from djinn_lab.protocol.systems import check_pool_runs_here
from djinn_lab.scheduler import AdaptiveScheduler, Scheduler, detect_environment

Tree = TypeVar("Tree")

START_WITHIN_S = 120
"""A pool is ready in seconds; a machine whose cores are busy takes longer."""
RESTARTED_WITHIN_S = 180.0
"""After a crash, on several hosts: their agents end before others are placed."""
START_TIMEOUT_S = START_WITHIN_S + 30.0
SAY_AFTER_S = 5.0


def connect(
    pool: str | None = None,
    profile: Profile | str | None = None,
    *,
    token: str | None = None,
    name: str | None = None,
    certificate: str | None = None,
) -> Session:
    """Open a session.

    ``pool``: a URL, or those of several pools on one database, separated by commas, of which the one that
    leads is taken at every connection; None takes ``DJINN_POOL``, else this user's running pool, else starts
    one on this machine. ``token``: default as of :func:`djinn_lab.client.credentials.token_source`, found
    again at every connection. ``certificate``: that an ``https`` pool must have, by its file or as
    ``sha256:...``; default ``DJINN_POOL_CERTIFICATE``, else the runtime file's, else public authorities
    decide. ``name`` is shown to other users of the pool (default: the program's). Raises PoolNotFound,
    AuthenticationError, VersionMismatch or ProfileError.
    """
    settings = (
        profile if isinstance(profile, Profile) else load_profile(profile) if profile else default_profile()
    )
    if token is not None and not token.strip():
        raise AuthenticationError(
            "the token is empty.",
            "Give the token that you were given, or leave token= out: then your own is looked for.",
        )
    shown = name or _program_name()
    url = pool or os.environ.get(POOL_VARIABLE)
    if url:
        return RemoteSession(url, token, settings, shown, certificate)
    info = read_runtime() or start_pool(settings)
    return LocalSession(info, token or os.environ.get(TOKEN_VARIABLE), settings, shown)


def signal_phase(phase: str, expected_s: float | None = None) -> PhaseAnswered:
    """Signal as :meth:`djinn_lab.client.session.Session.signal_phase` for the session that this process
    opened last, which in a notebook is the notebook's. Raises also UserError where none is open."""
    session = newest_session()
    if session is None:
        raise UserError("no session is open.", "Run a captured cell first, or call djinn_lab.connect().")
    return session.signal_phase(phase, expected_s)


def connect_again(closed: Session, profile: str | None) -> Session | None:
    """Open a closed session again, so that what it brought home can be captured, as :func:`connect` without
    a pool would open one; None where that would go to another pool."""
    url = os.environ.get(POOL_VARIABLE, "")
    if url != (closed.addresses if isinstance(closed, RemoteSession) else ""):
        return None
    settings = load_profile(profile) if profile else default_profile()
    if not url and read_runtime() is None:
        start_pool(settings)
    closed.profile = settings
    closed.reconnect()
    return closed


def _program_name() -> str:
    """Return what this process runs, such as ``train.py``."""
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    if name.startswith(("ipykernel", "ipython")):
        with suppress(OSError):  # the folder may be gone
            return f"notebook in {Path.cwd().name or '/'}"
        return "notebook"
    return name if name not in ("", "-c", "-m") else "python"


class LocalSession(Session):
    """A session with this machine's pool: after a restart of the pool it finds the new one by the runtime
    file. ``given``: the user's token, which it keeps; None: the runtime file's."""

    def __init__(self, info: RuntimeInfo, given: str | None, profile: Profile, name: str) -> None:
        self._given = given
        self._first = info.pool
        super().__init__(info.url, given or info.token, profile, name)

    def address(self) -> tuple[str, str]:
        info = read_runtime()
        if info is None:
            raise restart_under_way() or PoolSilent(
                "no pool is running on this machine.",
                f"Start one with `{start_command()}`, then run the cell again.",
            )
        return info.url, self._given or info.token

    @property
    def patience_s(self) -> float:
        return RESTARTED_WITHIN_S if restart_under_way() is not None else super().patience_s

    def _open(self, session: str | None = None) -> tuple[PoolConnection, str]:
        try:
            return super()._open(session)
        except AuthenticationError as error:
            info = read_runtime()
            if self._given is None or info is None or info.pool == self._first:
                raise
            raise AuthenticationError(
                f"{error.message} It was started after this session was opened with that token.",
                "Open a session with a token of this pool: djinn_lab.connect(token=...). Without token= and "
                f"{TOKEN_VARIABLE} it takes the owner's, which is another one after each start.",
            ) from None


class RemoteSession(Session):
    """A session with the pool at an address, or with the leader of several: when that is gone, the next cell
    finds the one that took over. A login's token is renewed before it ends; where a connection ended with its
    token, the session continues with the next one."""

    def __init__(
        self, addresses: str, given: str | None, profile: Profile, name: str, certificate: str | None
    ) -> None:
        self.addresses, self._given = addresses, given
        super().__init__(addresses, "", profile, name, certificate)

    def address(self) -> tuple[str, str]:
        url = leader_url(self.addresses, self._certificate)
        return url, token_source(url, self._given, self._certificate)()


def start_pool(profile: Profile) -> RuntimeInfo:
    """Start this machine's pool in the background, shared by all of this user's notebooks and the
    dashboard: one that crashed as it was, else with the profile's settings. Raises PoolNotFound where a user
    started another one, which ended with the machine or was killed."""
    check_pool_runs_here()
    command = [sys.executable, "-m", "djinn_lab.cli", "pool", "start", "--unasked"]
    command += ["--wait", str(START_WITHIN_S)]
    if supervisor_process() is None and read_crashed() is None:
        if configured := remembered_start():
            raise PoolNotFound(
                "no pool is running on this machine. The last one was configured, and no other one takes its "
                "place unasked.",
                f"Start it again with `{configured}`, or give it up with `djinn-lab pool stop`.",
            )
        command += _pool_options(profile)
    printed = _run_patiently(command)
    info = read_runtime()  # perhaps another process's, started in the meantime with other options
    if info is None:
        raise restart_under_way() or PoolNotFound(
            f"no pool was running and starting one failed:\n{printed}",
            "Try `djinn-lab doctor`.",
        )
    return info


def _pool_options(profile: Profile) -> list[str]:
    """Return the options of ``djinn-lab pool start`` for a profile's pool."""
    command = ["--devices", profile.pool.devices]
    if profile.pool.memory_bytes is not None:
        command += ["--memory", str(profile.pool.memory_bytes)]
    if profile.pool.threads is not None:
        command += ["--threads", str(profile.pool.threads)]
    if profile.pool.host_bytes is not None:
        command += ["--host-memory", str(profile.pool.host_bytes)]
    command += ["--disk", str(profile.pool.disk_bytes), "--link-rate", str(profile.pool.link_bytes_per_s)]
    return [*command, "--cost-estimator", profile.pool.cost_estimator]


def _run_patiently(command: Sequence[str]) -> str:
    """Run a command, say so where it takes long, and return what it printed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=SAY_AFTER_S)[0].strip()
        starts = "A pool starts on this machine. That takes longer where it is busy."
        print(restart_under_way() or starts, file=sys.stderr)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=START_TIMEOUT_S)[0].strip()
        process.kill()
        return f"it was not ready within {START_TIMEOUT_S:.0f} s."


def fetch(tree: Tree) -> Tree:
    """A module or any nested containers of tensors, with plain tensors in place of lazy ones. What holds
    none comes back as it is."""
    session = _session_of(tree)
    return tree if session is None else session.fetch(tree)


def execute_model(
    model: torch.nn.Module,
    x: object,
    scheduler: Scheduler | str | None = None,
    *,
    session: Session | None = None,
) -> Any:
    """Run ``model(x)`` without gradients on the pool and return plain tensors. ``x``: a tensor, a tuple of
    arguments or a dict of keyword arguments. The model's parameters, and without ``session`` the session
    that was opened for it, stay on the pool for the next call. ``scheduler``: its profile, or one by name,
    says on which device a new session begins (default: the session's profile), and its strategies and
    features say in which order the ops run. A :class:`~djinn_lab.scheduler.ProgressiveScheduler` records how
    the run ended. Raises OptionError for an unknown name."""
    orders = None if scheduler is None else _scheduler_of(scheduler)
    own = session or _session_of(model) or connect()
    planned = orders.within(detect_environment(own)) if isinstance(orders, AdaptiveScheduler) else orders
    cell = own.capture(f"execute_model({type(model).__name__})", scheduler=planned)
    with recorded_outcome(orders, own, cell):
        with torch.no_grad(), cell:
            output = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
        return own.fetch(output)


def _scheduler_of(scheduler: Scheduler | str) -> Scheduler:
    if isinstance(scheduler, str):
        return Scheduler(profile=scheduler)
    if not isinstance(scheduler, Scheduler):
        raise OptionError(
            f"scheduler={scheduler!r} is no scheduler.",
            "Give a Scheduler, such as create_smart_scheduler(), or a profile's name.",
        )
    return scheduler


def _session_of(tree: object) -> Session | None:
    """The session that the first lazy tensor belongs to."""
    leaves = [*tree.parameters(), *tree.buffers()] if isinstance(tree, torch.nn.Module) else tree_leaves(tree)
    for leaf in leaves:
        if is_lazy(leaf):
            session = recorder_of(leaf).owner
            assert isinstance(session, Session)
            return session
    return None
