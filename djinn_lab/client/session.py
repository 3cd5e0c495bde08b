"""A notebook's standing connection to a pool: one recorder, one session on the pool, many cells."""

from __future__ import annotations

import atexit
import copy
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import Timer
from time import monotonic, sleep
from typing import NamedTuple, TypeVar
from warnings import warn
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_leaves, tree_map

from djinn_lab.capture.host.interrupts import Stopped, locked, whole
from djinn_lab.capture.lazy import is_lazy, recorder_of
from djinn_lab.capture.recorders import Recorder, make_recorder
from djinn_lab.capture.torch_functions.pool_devices import PoolDevice
from djinn_lab.client.cell import Cell
from djinn_lab.client.cell_job import CellJob
from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.device_memory import DeviceMemory
from djinn_lab.client.executor import PoolExecutor
from djinn_lab.client.profile_terms import terms_of, terms_of_scheduler
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.wait_notice import WaitNotice
from djinn_lab.config import Profile
from djinn_lab.errors import DjinnError, OptionError, PoolLost, PoolSilent, PoolWaits, UserError, ValueLost
from djinn_lab.jobs import Terms
from djinn_lab.protocol.devices import device_profile
from djinn_lab.protocol.messages import TOLERANCE_MAX, PhaseAnswered, SignalPhase, Welcome
from djinn_lab.scheduler import DeviceProfile, Scheduler

Answer = TypeVar("Answer")
Tree = TypeVar("Tree")
Module = TypeVar("Module", bound=torch.nn.Module)

PATIENCE_S, RETRY_S = 20.0, 0.1
"""A server that crashed is started again by then, also after many crashes: 10 s later at most."""
SAY_AFTER_S = 3.0


class Pushed(NamedTuple):
    """What :meth:`Session.push` did: ``tensors`` with ``nbytes`` are on the pool, ``sent_bytes`` were moved
    in ``seconds``, and ``plain`` tensors stayed here."""

    tensors: int
    nbytes: int
    sent_bytes: int
    seconds: float
    plain: int


def newest_session() -> Session | None:
    """Return the session that this process opened last, of those that were not closed."""
    return next(reversed(list(_OPEN)), None)


class Session:
    """Made by :func:`djinn_lab.connect`. Its tensors may be used by several threads, which wait for each
    other; cells are recorded one at a time in a process (:mod:`djinn_lab.capture.host.turns`)."""

    def __init__(
        self, url: str, token: str, profile: Profile, name: str, certificate: str | None = None
    ) -> None:
        self.tolerance = 0.0
        """Of cells that name none: by how much their results may differ from those of their ops."""
        self._url, self._token, self._name = url, token, name
        self._certificate = certificate
        self._silent = ""
        self.profile = profile
        self.executor = PoolExecutor(self._open, profile.session.priority, WaitNotice(profile.session.quiet))
        self.recorder: Recorder = make_recorder(self.executor)
        self.recorder.owner = self
        self.recorder.devices = self._devices
        self.recorder.device_memory = DeviceMemory(self.executor, lambda: self.pool, self._ask)
        self.last_cell: Cell | None = None
        self._measured: list[DeviceProfile] = []
        self._cells = 0
        self._rest: tuple[tuple[str, str], PoolClient] | None = None
        self.reconnect()

    def _devices(self) -> list[PoolDevice]:
        known = self.welcome.devices if self.executor.connected else ()
        return [PoolDevice(one.device, one.name, one.memory_bytes, one.kind) for one in known]

    def reconnect(self) -> None:
        """Connect now, if there is no connection: a wrong token or version is known at once. A pool that
        does not answer may be just being started again."""
        began_s = monotonic()
        says = Timer(SAY_AFTER_S, self._say_silent)
        says.daemon = True
        says.start()
        try:
            while not self.executor.connected:
                try:
                    _ = self.executor.connection
                except (PoolSilent, PoolLost) as silent:
                    self._silent = silent.message if isinstance(silent, PoolWaits) else ""
                    if monotonic() > began_s + self.patience_s:
                        raise
                    sleep(RETRY_S)
        finally:
            says.cancel()

    def _release_dropped(self) -> None:
        """Free on the pool what no tensor here holds any more, unless a cell is under way, which does that
        itself: others may wait for the memory while this session's user thinks."""
        lock = self.recorder.lock
        if lock.acquire(blocking=False):
            try:
                if not self.recorder.capturing:
                    self.recorder.segment.release_dropped()
            finally:
                lock.release()

    def _say_silent(self) -> None:
        trying = f"trying for {self.patience_s:.0f} s"
        print(f"{self._silent or f'The pool at {self._url} does not answer yet'}; {trying}.", file=sys.stderr)

    def _open(self, session: str | None = None) -> tuple[PoolConnection, str]:
        self._url, self._token = self.address()
        version = str(torch.__version__)
        connection = PoolConnection(self._url, self._token, self._name, version, session, self._certificate)
        releasing = weakref.WeakMethod(self._release_dropped)
        connection.when_looking(lambda: call() if (call := releasing()) is not None else None)
        atexit.unregister(self.executor.close)
        atexit.register(self.executor.close)
        _OPEN[self] = None
        return connection, self._token

    def __repr__(self) -> str:
        if not self.connected:
            return f"<session of pool {self._url}, not connected>"
        welcome = self.welcome
        return f"<session {welcome.session[:8]} of {welcome.user}, pool {welcome.pool[:8]} at {self._url}>"

    def address(self) -> tuple[str, str]:
        """(URL, token) to connect to; replaced by :func:`~djinn_lab.client.connect.connect` for a pool
        found by its runtime file."""
        return self._url, self._token

    @property
    def patience_s(self) -> float:
        """How long to try to connect to a pool that does not answer."""
        return PATIENCE_S

    @property
    def connected(self) -> bool:
        """Is there a connection now? Asking opens none."""
        return self.executor.connected

    @property
    def rehearses(self) -> bool:
        """Is what is captured now only a dry run?"""
        return self.recorder.segment.backend is not self.executor

    @property
    def welcome(self) -> Welcome:
        return self.executor.connection.welcome

    @property
    def pool(self) -> PoolClient:
        """The pool's REST interface, as this session's user."""
        address = (self._url, self._token)
        if self._rest is None or self._rest[0] != address:
            self._rest = (address, PoolClient(*address, self._certificate))
        return self._rest[1]

    @property
    def url(self) -> str:
        return self._url

    @property
    def device(self) -> str | None:
        """Return the device of this session's values, None before its first cell."""
        own = self.welcome.session
        found = (row.device for row in self.pool.sessions() if row.session == own)
        return next(found, None)

    def capture(
        self,
        name: str | None = None,
        *,
        code: str = "",
        priority: str | None = None,
        file: str | None = None,
        terms: Terms | None = None,
        scheduler: Scheduler | None = None,
        tolerance: float | None = None,
        wait: bool = True,
    ) -> Cell:
        """A context in which torch ops are recorded and, at its end, run on the pool.

        ``name`` and ``code`` are shown on the dashboard. ``file`` is the ``co_filename`` of the code
        whose lines errors and graphs refer to (default: the caller's). ``terms``: target, gang,
        dependencies, deadline and time limit in the pool's queue (default: what the scheduler's profile
        says, else the session's). ``scheduler``: orders the cell's ops; the cell is then sent whole.
        ``tolerance``: results may differ by ``tolerance + tolerance * |result|`` from those of the cell's
        ops, which lets the pool compile parts of a cell that runs often (default: the session's, which is 0
        at first: not by one bit). Raises OptionError for one that is not between 0 and 0.1. ``wait``: False
        for a cell that is sent at its end and not waited for; ``cell.handle`` waits, and so does what uses
        the session next.
        """
        self._cells += 1
        asked = terms
        if asked is None:
            asked = terms_of(self.profile) if scheduler is None else terms_of_scheduler(scheduler)
        job = CellJob(
            name or f"cell {self._cells}",
            code,
            priority or self.executor.priority,
            asked,
            scheduler,
            checked_tolerance(self.tolerance if tolerance is None else tolerance),
        )
        job.waits = wait
        self.recorder.replayable = self.profile.session.numbers == "bits"
        return Cell(self.recorder, self.executor, self.device_profiles, self._remember, job, file)

    def _remember(self, cell: Cell) -> None:
        """Cells without torch work do not come between: a kernel that captures every cell has many. One with
        a handle is meant to be asked about."""
        if cell.recorded or not cell.waits or self.last_cell is None or not self.last_cell.recorded:
            self.last_cell = cell

    @whole
    def fetch(self, tree: Tree) -> Tree:
        """``tree`` (a tensor, a module, or nested containers of tensors) with plain tensors in place of
        lazy ones."""
        with self.recorder.paused_recording():
            if isinstance(tree, torch.nn.Module):
                return self._fetch_module(tree)
            self._bring([leaf for leaf in tree_leaves(tree) if is_lazy(leaf)])
            plain: Tree = tree_map(lambda leaf: _plain(leaf) if is_lazy(leaf) else leaf, tree)
            return plain

    def _fetch_module(self, module: Module) -> Module:
        lazies = [t for t in (*module.parameters(), *module.buffers()) if is_lazy(t)]
        self._bring(lazies)
        return copy.deepcopy(module, {id(lazy): _plain(lazy) for lazy in lazies})

    @whole
    def pull(self, tree: object) -> None:
        """Make a module's parameters and buffers, or the tensors in nested containers, plain again, in place
        (optimizers keep working)."""
        with self.recorder.paused_recording():
            lazies = [tensor for tensor in tensors_in(tree) if is_lazy(tensor)]
            gradients = [t.grad for t in lazies if is_lazy(t.grad)]
            self._bring([*lazies, *gradients])
            for lazy in lazies:
                plain = _plain(lazy)
                plain.grad = _plain(lazy.grad) if is_lazy(lazy.grad) else lazy.grad
                self.recorder.replace(lazy, plain)

    @whole
    def push(self, tree: object) -> Pushed:
        """Bring a module's parameters and buffers, or the tensors in nested containers, to the pool now: they
        become lazy in place, and the cells that use them upload nothing. Tensors whose memory others share
        stay plain. Raises UserError inside a captured cell."""
        if self.recorder.capturing:
            raise UserError("a captured cell uploads what its ops use.", "Push before the cell, or after it.")
        tensors = tensors_in(tree)
        for tensor in tensors:
            if not is_lazy(tensor):
                self.recorder.put_on_pool(tensor)
        lazies = [tensor for tensor in tensors if is_lazy(tensor)]
        remembered = self.last_cell
        try:
            with self.capture("push") as cell, torch.no_grad():
                # an op that reads nothing of a tensor needs it on the device all the same
                _touched = [lazy.detach().as_strided((0,), (1,)).clone() for lazy in lazies]
                self.recorder.finish("push")
        finally:
            self.last_cell = remembered
        return Pushed(
            len(lazies),
            sum(lazy.nbytes for lazy in lazies),
            cell.report.bytes_up,
            cell.report.total_s,
            len(tensors) - len(lazies),
        )

    def _bring(self, lazies: list[torch.Tensor]) -> None:
        self.recorder.fetch_tensors(lazies, "fetch")

    @whole
    def signal_phase(self, phase: str, expected_s: float | None = None) -> PhaseAnswered:
        """A hint that never changes a result: ``IO_WAIT`` (nothing to compute for about ``expected_s``
        seconds), ``SOON`` or ``COMPUTE``. The answer has ``answer`` (``accepted``, ``clipped``,
        ``deferred``, ``superseded`` or ``rejected``, as for what is no phase) and ``message``. Raises
        UserError for a duration that is no number, SessionLost or PoolLost once when the session ended: the
        next signal, or cell, opens a new one."""
        if not (expected_s is None or isinstance(expected_s, int | float)):
            raise UserError(f"expected_s={expected_s!r} is not a duration.", "Give seconds from now.")
        signal = SignalPhase(phase, expected_s)

        def exchange(connection: PoolConnection) -> PhaseAnswered:
            connection.send(signal)
            return connection.receive_phase()

        return self._ask(exchange)

    def _ask(self, exchange: Callable[[PoolConnection], Answer]) -> Answer:
        """Send something behind all that was sent before, and return the answer; on the next connection,
        where this one breaks. Raises SessionLost or PoolLost as :meth:`signal_phase`."""
        with locked(self.recorder.lock):
            try:
                try:
                    return exchange(self.executor.connection)
                except PoolLost as lost:
                    self.executor.resume(lost)
                    return exchange(self.executor.connection)
            except Stopped as stopped:
                raise stopped.error from None
            except PoolLost:
                if not self.recorder.capturing:  # a cell finds out when it sends what it recorded
                    self.executor.give_up()
                    self.recorder.segment.lose_pool()
                raise

    def device_profiles(self, device: str | None) -> list[DeviceProfile]:
        """Return the scheduler's profiles of the pool's devices, or of ``device`` alone."""
        found = [device_profile(info) for info in self.welcome.devices]
        if not all(profile.measured for profile in found):
            known = self._measured if _names(self._measured) == _names(found) else self._measured_since()
            found = known or found
        return [profile for profile in found if profile.device == device] or found

    def _measured_since(self) -> list[DeviceProfile]:
        """Ask for devices that were not measured yet when the session began. None of a pool that does not
        answer."""
        from djinn_lab.client.own_work import device_profiles

        found: list[DeviceProfile] = []
        with suppress(DjinnError):
            found = device_profiles(self.pool.status(), self.pool.costs(details=True), self.pool.memory())
        if all(profile.measured for profile in found):
            self._measured = found
        return found

    @whole
    def close(self, keep: bool = False) -> None:
        """Free everything this session holds on the pool, and cancel its cell under way. ``keep``: bring home
        what tensors hold first, so that a model goes on in plain torch, or in a later cell, which opens a new
        session. That may wait for the pool; what could not be brought is named in a warning. After a cell was
        cancelled nothing is brought. Tensors whose values are not kept raise ValueLost when used."""
        atexit.unregister(self.executor.close)
        _OPEN.pop(self, None)
        idle = not self.recorder.capturing and self.recorder.segment.launched is None
        try:
            if keep and idle and self.executor.connected:
                with suppress(PoolLost):  # as quiet as the executor
                    self._bring_home()
        except DjinnError as failed:
            warn(f"What tensors of the closed session hold is lost: {failed}", stacklevel=2)
        finally:
            self.executor.close()
            with locked(self.recorder.lock):
                if not self.recorder.capturing:
                    self.recorder.segment.lose_pool()

    def _bring_home(self) -> None:
        """Fetch all that only the pool has, but for what turns out to be lost."""
        with self.recorder.paused_recording():
            left = self.recorder.only_on_pool()
            while left:
                try:
                    self.recorder.fetch_whole(left, "fetch")
                    return
                except ValueLost:
                    tried, left = len(left), self.recorder.only_on_pool()
                    if len(left) >= tried:
                        raise


_OPEN: WeakKeyDictionary[Session, None] = WeakKeyDictionary()
"""In the order in which they were opened."""


def _names(profiles: list[DeviceProfile]) -> list[str]:
    return [profile.device for profile in profiles]


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Return the parameters and buffers of a module, or the tensors in nested containers, each once."""
    if isinstance(tree, torch.nn.Module):
        return [*tree.parameters(), *tree.buffers()]
    found = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}
    return list(found.values())


def checked_tolerance(tolerance: float) -> float:
    """Return the tolerance. Raises OptionError for one that is not between 0 and 0.1."""
    if not (isinstance(tolerance, int | float) and 0 <= tolerance <= TOLERANCE_MAX):
        raise OptionError(
            f"{tolerance!r} is not a tolerance.", f"Give a number from 0 (exact) to {TOLERANCE_MAX}, as 1e-5."
        )
    return float(tolerance)


def _plain(lazy: torch.Tensor) -> torch.Tensor:
    """An independent plain tensor with the values of a lazy one, a parameter where that is one."""
    recorder = recorder_of(lazy)
    with torch.no_grad():
        plain: torch.Tensor = recorder.fetch_tensors([lazy], "fetch")[0].clone()
    if isinstance(lazy, torch.nn.Parameter):
        return torch.nn.Parameter(plain, lazy.requires_grad)
    return plain.requires_grad_(lazy.requires_grad and lazy.is_leaf)
