"""How processes begin, and what happens at their parents' end. Needs no package beside Python: the build of
the extensions has none."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if sys.platform == "linux":
    _libc = ctypes.CDLL(None)
    _PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

    def end_with_parent() -> None:
        """Have the kernel kill this process when the one that started it has ended."""
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def adopt_orphans() -> None:
        """Become the parent of what children of this process leave behind."""
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)

else:

    def end_with_parent() -> None:
        """Do nothing: this system does not tell a process of its parent's end."""

    def adopt_orphans() -> None:
        """Do nothing: on this system orphans go to the first process."""


if sys.platform == "win32":
    UNCATCHABLE = frozenset[signal.Signals]()
    """Signals that cannot have a handler."""

    def after_fork(call: Callable[[], None]) -> None:
        """Call this in every process that is forked from this one: none is."""

    def start_detached(command: Sequence[str], log: Path) -> None:
        """Start a process that outlives this one, at low priority, with what it says in a file."""
        with log.open("wb") as file:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                creationflags=subprocess.DETACHED_PROCESS
                | subprocess.CREATE_NEW_PROCESS_GROUP
                | subprocess.BELOW_NORMAL_PRIORITY_CLASS,
            )

else:
    UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})
    """Signals that cannot have a handler."""
    # The shell ends at once and leaves the command to init: no child of this process, and none to wait for.
    _DETACHED = 'log=$1; shift; nice -n 10 "$@" >"$log" 2>&1 </dev/null &'

    def after_fork(call: Callable[[], None]) -> None:
        """Call this in every process that is forked from this one."""
        os.register_at_fork(after_in_child=call)

    def start_detached(command: Sequence[str], log: Path) -> None:
        """Start a process that outlives this one, at low priority, with what it says in a file."""
        subprocess.run(
            ["/bin/sh", "-c", _DETACHED, "sh", str(log), *command], check=True, start_new_session=True
        )
