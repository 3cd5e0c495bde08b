"""Have the modules of :mod:`djinn_lab` see another system than Linux: its name, and no more of Python than it
has there. Everything else of the process, torch and the tests among it, sees Linux.

``PYTHON_SIMULATED_SYSTEM`` names the system, ``darwin`` or ``win32``. On macOS a pool is started for trying
out, so its processes see macOS, too. None runs on Windows: what belongs to pools sees Linux there, as on
another machine. What a file system does otherwise (letters of drives, files that cannot be replaced while
they are open) is not simulated.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

VARIABLE = "PYTHON_SIMULATED_SYSTEM"
PACKAGE = "djinn_lab"
OF_POOLS = ("djinn_lab.pool", "djinn_lab.worker")
NOT_THERE = ("/proc", "/dev/shm", "/sys")
ABSENT_MODULES = {
    "darwin": (),
    "win32": ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog"),
}
ABSENT_NAMES = {
    "darwin": {
        "os": "sched_getaffinity pidfd_open posix_fallocate waitid O_PATH memfd_create",
        "signal": "pidfd_send_signal",
        "select": "epoll",
        "socket": "",
        "subprocess": "",
        "sys": "",
    },
    "win32": {
        "os": "fork forkpty getuid geteuid getgid getegid getgroups register_at_fork killpg getpgid setsid "
        "sched_getaffinity posix_spawn pread pwrite preadv statvfs sysconf nice waitid wait mkfifo chown "
        "fchmod O_CLOEXEC O_NOFOLLOW O_PATH pidfd_open posix_fallocate memfd_create WNOHANG getloadavg uname "
        "setpriority",
        "signal": "SIGKILL SIGSTOP SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGALRM SIGPIPE pause pthread_kill "
        "pthread_sigmask setitimer pidfd_send_signal",
        "select": "poll epoll",
        "socket": "AF_UNIX send_fds recv_fds SO_REUSEPORT SOCK_SEQPACKET",
        "subprocess": "",
        "sys": "",
    },
}


class SystemModule(ModuleType):
    """A module of Python as it is on the simulated system."""

    def __init__(self, real: ModuleType, absent: Sequence[str], other: Mapping[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(other, real_module=real, absent=frozenset(absent))

    def __getattr__(self, name: str) -> Any:
        if name in self.absent:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on this system")
        return getattr(self.real_module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real_module, name, value)


def simulate(system: str) -> None:
    modules = {name: _simulated(system, name, absent) for name, absent in ABSENT_NAMES[system].items()}
    modules |= {"msvcrt": _msvcrt()} if system == "win32" else {}
    linux = OF_POOLS if system == "win32" else ()
    real_import = builtins.__import__

    def import_there(name: str, globals: Any = None, *rest: Any, **options: Any) -> ModuleType:
        importer = str((globals or {}).get("__name__", ""))
        if importer.startswith(PACKAGE) and not importer.startswith(linux):
            if name in ABSENT_MODULES[system]:
                raise ModuleNotFoundError(f"No module named {name!r} on this system", name=name)
            if name in modules:
                return modules[name]
        return real_import(name, globals, *rest, **options)

    builtins.__import__ = import_there
    _hide_files(linux)


def _simulated(system: str, name: str, absent: str) -> ModuleType:
    other: dict[str, Any] = {"sys": {"platform": system}, "subprocess": {"run": _run}}.get(name, {})
    if name == "subprocess":
        other |= dict.fromkeys(("DETACHED_PROCESS", "CREATE_NEW_PROCESS_GROUP"), 0)
        other |= {"BELOW_NORMAL_PRIORITY_CLASS": 0, "Popen": _popen}
    return SystemModule(__import__(name), absent.split(), other)


def _run(command: Sequence[str], *arguments: Any, **options: Any) -> Any:
    if command[0] == "/usr/sbin/sysctl":
        return subprocess.CompletedProcess(command, 0, "6D1C2A70-0000-4000-8000-000000000001\n", "")
    return subprocess.run(command, *arguments, **options)


def _popen(*arguments: Any, creationflags: int = 0, **options: Any) -> Any:
    return subprocess.Popen(*arguments, **options)


def _msvcrt() -> ModuleType:
    module = ModuleType("msvcrt")

    def locking(descriptor: int, mode: int, nbytes: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    module.__dict__.update(LK_NBLCK=2, locking=locking)
    return module


def _hide_files(linux: tuple[str, ...]) -> None:
    """Hide Linux's files from the package, whichever function of Python's own it asks."""

    def hidden(path: object) -> bool:
        name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        return name.startswith(NOT_THERE) and _asks(sys._getframe(2), linux)

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and hidden(arguments[0]):
            raise FileNotFoundError(2, "No such file on this system", arguments[0])

    real_stat = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if hidden(path):
            raise FileNotFoundError(2, "No such file on this system", path)
        return real_stat(path, **options)

    real_access = os.access

    def access(path: Any, mode: int, **options: Any) -> bool:
        return not hidden(path) and real_access(path, mode, **options)

    sys.addaudithook(opened)
    os.stat, os.access = stat, access


PYTHONS_OWN = Path(os.__file__).parent.as_posix()


def _asks(frame: FrameType | None, linux: tuple[str, ...]) -> bool:
    """Return whether the package asks: the first caller that is no part of Python itself."""
    while frame is not None:
        name, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
        of_python = file.startswith((PYTHONS_OWN, "<frozen")) and "site-packages" not in file
        if not of_python and name != __name__:
            return name.startswith(PACKAGE) and not name.startswith(linux)
        frame = frame.f_back
    return False


simulate(os.environ[VARIABLE])
if os.environ[VARIABLE] == "win32":
    del os.environ[VARIABLE]  # the pools of tests are elsewhere
