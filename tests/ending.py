"""All that a test process starts ends with it, however it ends: pools, dashboards, kernels, databases, Ray.

They leave its process group and its session, so that nothing else would end them when it is killed. What they
have in common is its environment: a variable marks them, and a small process beside the tests waits for their
end, and then ends all that have it.

    python ending.py PID MARK"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "TEST_PROCESS_MARK"
STOP_WITHIN_S = 10.0
LOOK_S = 0.1


def end_with_this_process() -> int:
    """Mark what this process starts from now on, and return the process that waits for its end."""
    os.environ[VARIABLE] = mark = uuid.uuid4().hex
    unmarked = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-S", "-E", __file__, str(os.getpid()), mark]
    no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawn(sys.executable, command, unmarked, file_actions=[no_input], setsid=True)


def marked(mark: str) -> Iterator[int]:
    """Find the processes that were started under a mark."""
    wanted = f"{VARIABLE}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                yield int(path.name)


def end_all(mark: str) -> None:
    """End them: pools by themselves, with their files, and the others a moment later in any case."""
    _signal(mark, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_WITHIN_S
    while time.monotonic() < deadline_s and any(marked(mark)):
        time.sleep(LOOK_S)
    while any(marked(mark)):
        _signal(mark, signal.SIGKILL)
        time.sleep(LOOK_S)


def _signal(mark: str, number: signal.Signals) -> None:
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_for_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        ended = select.poll()
        ended.register(os.pidfd_open(pid), select.POLLIN)
        ended.poll()


if __name__ == "__main__":
    wait_for_end(int(sys.argv[1]))
    end_all(sys.argv[2])
