"""The layers of the sandbox, in the order in which a process enters them."""

from __future__ import annotations

import logging
import os
import resource
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from djinn_lab.protocol.isolation import SandboxLevel
from djinn_lab.worker.sandbox import kernel, landlock, seccomp
from djinn_lab.worker.sandbox.landlock import Access

OWN = Access.READ | Access.WRITE | Access.TRUNCATE | Access.MAKE | Access.REMOVE | Access.LIST
BY_NAME = Access.READ
"""Files whose names are not to be guessed: a process that has the name may read, and none can be listed."""
RESULTS = Access.READ | Access.WRITE | Access.TRUNCATE | Access.MAKE
CODE = Access.READ | Access.LIST
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
MACHINE = (
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/dev/null",
    "/dev/urandom",
)

DRIVER_FILES = (
    *("/usr", "/opt", "/etc", "/sys", "/proc/driver", "/proc/sys", "/proc/devices", "/proc/modules"),
    *("/proc/version", "/proc/filesystems"),
)
DRIVER_NODES = ("nvidia*", "dri", "kfd", "dxg")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reach:
    """What a process works with. ``own``: directories that it reads and writes; ``store``: files that it
    reads by name; ``results``: files that it makes, and reads by name; ``compiled``: libraries that it
    loads by name."""

    own: tuple[Path, ...] = ()
    store: Path | None = None
    results: Path | None = None
    compiled: Path | None = None

    def accesses(self) -> dict[Path, Access]:
        """Return what is in reach, with Python's and the system's libraries."""
        given: list[tuple[Path | None, Access]] = [(path, CODE) for path in code_directories()]
        given += [(Path(path), CODE) for path in (*MACHINE, f"/proc/{os.getpid()}")]
        given += [(path, OWN) for path in self.own]
        given += [(self.store, BY_NAME), (self.results, RESULTS), (self.compiled, BY_NAME)]
        found: dict[Path, Access] = {}
        for path, access in given:
            if path is not None:
                found[path] = found.get(path, Access(0)) | access
        return found


def code_directories() -> Iterable[Path]:
    """Libraries, which are loaded when they are first needed."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    yield from (Path(sysconfig.get_path(name)) for name in names)
    yield from map(Path, site.getsitepackages())
    yield from _installed_elsewhere()
    yield Path(__file__).parents[2]
    yield from map(Path, LIBRARIES)


def _installed_elsewhere() -> Iterable[Path]:
    """Return the directories of packages that a ``.pth`` file or PYTHONPATH adds, as an environment on top of
    another does. Not every entry of ``sys.path``: one may be where a user works."""
    for entry in map(Path, filter(None, sys.path)):
        installed = entry.is_dir() and any(entry.glob("*.dist-info"))
        if installed and entry.resolve() != Path.cwd():
            yield entry.resolve()


def enter(reach: Reach) -> SandboxLevel:
    """Enter every layer that this machine has, for good, and return the level that holds. This process has
    one thread."""
    if sys.platform != "linux":
        return enter_process_only()
    _leave_no_core()
    files = _attempt("Landlock", lambda: landlock.restrict(reach.accesses()))
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    calls = _attempt("seccomp", seccomp.install)
    if not calls:
        return "process-only"
    return "full" if files else "no-landlock"


def enter_beside_driver(reach: Reach) -> SandboxLevel:
    """Enter what leaves the driver of a device its way, once it has begun: files of others are out of reach,
    and what no driver needs is refused. Threads of its own keep the files that this process had."""
    _leave_no_core()
    files = _attempt("Landlock", lambda: landlock.restrict(reach.accesses() | _of_drivers()))
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    calls = _attempt("seccomp", seccomp.install_beside_driver)
    return "driver" if files and calls else "process-only"


def enter_process_only() -> SandboxLevel:
    """Enter no more than a process of its own."""
    _leave_no_core()
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return "process-only"


def _leave_no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def _of_drivers() -> dict[Path, Access]:
    """Return what the drivers of CUDA and ROCm read, and the nodes of their devices."""
    nodes = [node for pattern in DRIVER_NODES for node in Path("/dev").glob(pattern)]
    return dict.fromkeys(map(Path, DRIVER_FILES), CODE) | dict.fromkeys(nodes, CODE | Access.WRITE)


def _attempt(layer: str, act: Callable[[], None]) -> bool:
    try:
        act()
    except OSError as error:
        log.warning("this machine has no %s for workers: %s", layer, error)
        return False
    return True
