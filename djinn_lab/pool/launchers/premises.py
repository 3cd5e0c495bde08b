"""What the workers of a pool's devices have in common on this machine: directories, files, how they start."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from djinn_lab.errors import PoolError
from djinn_lab.pool.blobs.directory import RESULTS, STORE
from djinn_lab.pool.devices.launcher import TakenCopy, WorkerEvents
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.adoption import Adoption, LeftCopy, take_copies
from djinn_lab.pool.launchers.host_rows import HostRows
from djinn_lab.pool.launchers.orphans import MOVED, OrphanedFiles
from djinn_lab.pool.launchers.processes import Starter
from djinn_lab.pool.launchers.region_compiler import RegionCompiler
from djinn_lab.protocol.template import WorkerOptions
from djinn_lab.units import format_bytes

log = logging.getLogger(__name__)


class Premises:
    """``host``, ``disk``: where workers park sessions, each trust group below a directory of its own; None
    where no plan has such a tier. ``stopping``: no worker is started any more. ``left``: a next pool needs
    what workers parked."""

    def __init__(self, starter: Starter, blobs: Path, host: Path | None, disk: Path | None) -> None:
        self.starter = starter
        self.stopping = self.left = False
        self.events: WorkerEvents | None = None
        self.compiler = RegionCompiler()
        self._blobs = blobs
        self._host = host
        self._disk = disk
        self._first = _drawn()
        self._names: dict[str, str] = {}
        """By trust group, of its directories: no path shows a user's name."""
        self._host_rows: dict[str, HostRows] = {}
        """By device."""
        self.orphans = OrphanedFiles([path for path in (host, disk) if path is not None])

    def options(self, plan: DevicePlan, group: str | None) -> WorkerOptions:
        """Return the options of a group's new worker; None: of one for the group that comes first."""
        rows = self._rows_of(plan)
        name = self._first if group is None else self._names.setdefault(group, _drawn())
        return WorkerOptions(
            device=plan.device,
            memory_bytes=plan.memory_bytes,
            threads=plan.threads,
            store_directory=str(self._blobs / STORE),
            result_directory=str(self._blobs / RESULTS),
            host_bytes=plan.host_bytes if self._host is not None else 0,
            host_directory=_made(self._host, name) if plan.host_bytes else None,
            host_account=None if rows is None else str(rows.path),
            host_row=0 if rows is None else rows.give(),
            disk_bytes=plan.disk_bytes if self._disk is not None else 0,
            disk_directory=_made(self._disk, name) if plan.disk_bytes else None,
            link_bytes_per_second=float(plan.link_bytes_per_s),
            compiled_directory=str(self.compiler.directory_of(plan)),
            region_compiler=plan.region_compiler,
        )

    def check_host(self, plan: DevicePlan) -> None:
        """Raise PoolError for a host tier that is larger than its file system; say so in the log where the
        file system has less left than that, as when a dead pool's files are in it."""
        if self._host is None or not plan.host_bytes:
            return
        status = os.statvfs(self._host)
        size, free = (blocks * status.f_frsize for blocks in (status.f_blocks, status.f_bavail))
        if plan.host_bytes > size:
            raise PoolError(
                f"A host tier of {format_bytes(plan.host_bytes)} does not fit {self._host}, a file system of "
                f"{format_bytes(size)}.",
                "Ask for less host memory, or make that file system larger (docker run --shm-size).",
            )
        if plan.host_bytes > free:
            log.warning(
                "%s: the host tier may have %s, and %s of shared memory are free",
                plan.device,
                format_bytes(plan.host_bytes),
                format_bytes(free),
            )

    def _rows_of(self, plan: DevicePlan) -> HostRows | None:
        """Return the rows in which the workers of a device count host memory; None without a host tier."""
        if self._host is None or not plan.host_bytes:
            return None
        found = self._host_rows.get(plan.device)
        if found is None:
            found = self._host_rows[plan.device] = HostRows(self._host.parent, plan.device)
            self._count_dead()  # of a dead pool
        return found

    def is_first(self, group: str) -> bool:
        """Return whether the group is the one that came first, and make it so if none did."""
        if self._first not in self._names.values():
            self._names.setdefault(group, self._first)
        return self._names.get(group) == self._first

    def take_over(
        self, copies: Mapping[str, LeftCopy], host: Sequence[Path], disk: Sequence[Path]
    ) -> dict[str, TakenCopy]:
        """Take over what workers of dead pools parked, by session. ``host``, ``disk``: their directories."""
        adoption = Adoption(host, disk, self._place)
        taken = take_copies(copies, adoption)
        self.orphans.adopted(adoption.files)
        return taken

    async def adopt(self, group: str, name: str, write: Callable[[Path], Awaitable[None]]) -> Path:
        """Let a session that was parked on another host be written into its group's directory."""
        directory = self._place(group, self._host is None)
        assert directory is not None
        path = directory / f"{name}{MOVED}{_drawn()}"
        await write(path)
        self.orphans.adopted([path])
        return path

    def _place(self, group: str, on_disk: bool) -> Path | None:
        """Return the directory of a group, as :meth:`options` will give it to its workers."""
        self.is_first(group)
        made = _made(self._disk if on_disk else self._host, self._names.setdefault(group, _drawn()))
        return None if made is None else Path(made)

    def ended(self, options: WorkerOptions, pid: int | None, results: set[str]) -> None:
        """Note what a worker that has ended left behind, and remove its results beside those of which it has
        told (``results``): their receivers remove them."""
        if pid is not None:
            self.orphans.died(pid)
            self._count_dead()
        if options.device in self._host_rows:
            self._host_rows[options.device].ended(options.host_row)
        if pid is None:
            return
        for path in (self._blobs / RESULTS).glob(f"result-{pid:08x}*"):
            if path.name not in results:
                path.unlink(missing_ok=True)

    def present(self, results: set[str]) -> set[str]:
        """Return those of these results that are still there."""
        return {name for name in results if (self._blobs / RESULTS / name).exists()}

    def sweep(self) -> None:
        """Remove what dead workers parked and no manifest names any more."""
        if self.events is not None:
            self.orphans.sweep(self.events.manifests())
            self._count_dead()

    def give_way(self) -> None:
        """Remove also copies of sessions that are on a device again, for those that have no other place.
        These sessions are lost if their worker dies before their next copy."""
        needed = None if self.events is None else self.events.needed_manifests()
        if needed is not None:
            self.orphans.sweep(needed)
            self._count_dead()

    def _count_dead(self) -> None:
        """Count what dead workers left in shared memory, where it is known what of it may give way."""
        needed: Sequence[bytes] | None = ()
        if self.orphans:
            needed = None if self.events is None else self.events.needed_manifests()
        if needed is not None:
            for device, rows in self._host_rows.items():
                rows.count_dead(*self.orphans.in_host_memory(device, needed))

    def clear(self) -> None:
        """Remove all that dead workers parked, unless it is left to a next pool."""
        if not self.left:
            self.orphans.sweep(())


def _drawn() -> str:
    return uuid.uuid4().hex[:16]


def _made(parent: Path | None, name: str) -> str | None:
    if parent is None:
        return None
    directory = parent / name
    directory.mkdir(mode=0o700, exist_ok=True)
    return str(directory)
