"""``python supervisor.py LOCK COMMAND...``: runs a pool's server, and starts it again when it crashes.

It imports little, so that it stays small beside the server, and is run by its path, without site packages. It
holds a lock on the file ``LOCK``, with its process number in it, while it runs. A server that was stopped, or
that cannot start at first, is not started again, and neither is one that crashes over and over. One that
served and cannot start after a crash is tried again until it can: its sessions wait for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

RESTARTED_VARIABLE = "DJINN_POOL_RESTARTED"
"""Set for a server that is started again."""
CANNOT_START = 2
"""The server's exit code for options or a machine with which it cannot start."""
CANNOT_START_NOW = 75
"""The same for what may pass, such as a full disk."""
LOCK_BYTES = 1024
"""The lock's file has this size from the beginning, so that the server can write over it on a full disk
(:mod:`djinn_lab.protocol.runtime_file`)."""
RESTARTS_MAX = 10
WITHIN_S = 600.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 10.0


class Supervisor:
    """``command``: of the server."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._server: int | None = None
        self._stopping = False
        self._crashed = False
        self._tries = 0
        self._restarts: list[float] = []

    def run(self) -> int:
        """Return the server's last exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while True:
            code = self._serve()
            cannot = code in (CANNOT_START, CANNOT_START_NOW)
            if self._stopping or code == 0 or (cannot and not self._crashed):
                return code
            pause_s = self._pause_before_try_s() if cannot else self._pause_s()
            if pause_s is None:
                say(f"the server crashed {RESTARTS_MAX + 1} times in {WITHIN_S:.0f} s: it stays down")
                return code
            self._crashed = True
            what = "cannot start now, as the line above says" if cannot else described(code)
            say(f"the server {what}; it is started again in {pause_s:.1f} s")
            time.sleep(pause_s)
            if self._stopping:
                return 0

    def _serve(self) -> int:
        """Run the server once, and return its exit code; negative for a signal."""
        again = {RESTARTED_VARIABLE: "1"} if self._crashed else {}
        self._server = os.posix_spawn(self._command[0], self._command, {**os.environ, **again})
        if self._stopping:
            self._end()
        server = self._server
        if sys.platform != "darwin":  # which has no waitid
            os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)  # a stop may come until then
        self._server = None
        _, status = os.waitpid(server, 0)
        return os.waitstatus_to_exitcode(status)

    def _pause_s(self) -> float | None:
        """Return how long to wait before the next start after a crash; None for no more."""
        now_s = time.monotonic()
        self._tries = 0
        self._restarts = [at_s for at_s in self._restarts if at_s > now_s - WITHIN_S]
        if len(self._restarts) >= RESTARTS_MAX:
            return None
        self._restarts.append(now_s)
        return min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0 ** (len(self._restarts) - 1))

    def _pause_before_try_s(self) -> float:
        """Return how long to wait before the next start after one that was not possible."""
        self._tries += 1
        return min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0 ** min(self._tries, 10))

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        self._end()

    def _end(self) -> None:
        if self._server is not None:
            os.kill(self._server, signal.SIGTERM)


def described(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def say(what: str) -> None:
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} supervisor: {what}\n"
    with contextlib.suppress(OSError):  # a log without space must not end the pool
        os.write(sys.stderr.fileno(), line.encode())


def main(arguments: Sequence[str]) -> int:
    with open(arguments[0], "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(str(os.getpid()).encode().ljust(LOCK_BYTES))
        lock.flush()
        code = Supervisor(arguments[1:]).run()
        lock.truncate(0)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
