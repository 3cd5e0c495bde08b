"""``python -m djinn_lab.worker.sandbox.canary DIRECTORY [driver]``: a process that enters the sandbox, or the
one beside a device's driver, and tries what it forbids.

It prints :class:`~djinn_lab.protocol.isolation.CanaryFindings` as JSON. What it would harm are its parent,
and the directory, which has a file ``secret``."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from djinn_lab.protocol.isolation import Attempt, CanaryFindings
from djinn_lab.worker.sandbox import Reach, enter, enter_beside_driver, kernel

REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
DRIVER = "driver"
PTRACE_SEIZE = 0x4206
CLONE_NEWUSER = 0x10000000
CALLS = {
    "x86_64": {
        "ptrace": 101,
        "process_vm_readv": 310,
        "pidfd_open": 434,
        "bpf": 321,
        "perf_event_open": 298,
        "io_uring_setup": 425,
        "userfaultfd": 323,
        "inotify_init1": 294,
        "keyctl": 250,
        "unshare": 272,
        "mount": 165,
        "setuid": 105,
    },
    "aarch64": {
        "ptrace": 117,
        "process_vm_readv": 270,
        "pidfd_open": 434,
        "bpf": 280,
        "perf_event_open": 241,
        "io_uring_setup": 425,
        "userfaultfd": 282,
        "inotify_init1": 26,
        "keyctl": 219,
        "unshare": 97,
        "mount": 40,
        "setuid": 146,
    },
}


def attempts(foreign: Path) -> list[Attempt]:
    """Try everything that a worker must not be able to do. ``foreign``: a directory with a file ``secret``,
    which is not in its reach."""
    parent = os.getppid()
    files: dict[str, Callable[[], object]] = {
        "read a file of the pool's account": lambda: (foreign / "secret").read_bytes(),
        "list a directory of the pool's account": lambda: list(foreign.iterdir()),
        "write a file of the pool's account": lambda: (foreign / "secret").write_bytes(b""),
        "make a file elsewhere": lambda: (foreign / "made").touch(),
        "delete a file of the pool's account": lambda: (foreign / "secret").unlink(),
        "read another process's memory as a file": lambda: Path(f"/proc/{parent}/mem").open("rb").close(),
        "read another process's environment": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
    }
    calls: dict[str, Callable[[], object]] = {
        "open a TCP connection": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "run a program": lambda: os.execv("/nonexistent", ["nonexistent"]),
        "start a process": _start_process,
        "signal another process": lambda: os.kill(parent, 0),
        "trace another process": lambda: _call("ptrace", PTRACE_SEIZE, parent, 0, 0),
        "read another process's memory": lambda: _call("process_vm_readv", parent, None, 0, None, 0, 0),
        "hold another process": lambda: _call("pidfd_open", parent, 0),
        "make a namespace": lambda: _call("unshare", CLONE_NEWUSER),
        "mount a file system": lambda: _call("mount", b"none", b"/nonexistent", b"tmpfs", 0, None),
        "become another user": lambda: _call("setuid", 65534),
        "load a program into the kernel": lambda: _call("bpf", 0, None, 0),
        "watch performance counters": lambda: _call("perf_event_open", None, 0, -1, -1, 0),
        "use io_uring": lambda: _call("io_uring_setup", 1, None),
        "handle page faults": lambda: _call("userfaultfd", 0),
        "watch files": lambda: _call("inotify_init1", 0),
        "use the kernel's keys": lambda: _call("keyctl", 0, 0, 0),
        "raise its own limits": lambda: resource.setrlimit(resource.RLIMIT_DATA, (-1, -1)),
        "become dumpable": lambda: kernel.prctl(kernel.PR_SET_DUMPABLE, 1),
    }
    found = [Attempt(act, "Landlock", _refused(attempt)) for act, attempt in files.items()]
    found += [Attempt(act, "seccomp", _refused(attempt)) for act, attempt in calls.items()]
    no_core = resource.getrlimit(resource.RLIMIT_CORE)[1] == 0
    return [*found, Attempt("leave a core file", "process", no_core)]


def works() -> bool:
    """Return whether what a worker does need is still allowed: threads, memory, its own signals."""
    done = threading.Event()
    thread = threading.Thread(target=done.set)
    thread.start()
    thread.join()
    memory = bytearray(64 * 2**20)
    return done.is_set() and not memory[-1]


def _refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError as error:
        return error.errno in (*REFUSED, errno.ENOTTY)
    except ValueError:  # resource says so of a refused limit
        return True
    return False


def _start_process() -> None:
    if os.fork() == 0:
        os._exit(0)


def _call(name: str, *arguments: object) -> int:
    passed = [ctypes.c_char_p(one) if isinstance(one, bytes) else one for one in arguments]
    return kernel.syscall(CALLS[os.uname().machine][name], *passed)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    foreign = Path(sys.argv[1])
    level = (enter_beside_driver if DRIVER in sys.argv[2:] else enter)(Reach())
    found = CanaryFindings(level, works(), attempts(foreign))
    print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main()
