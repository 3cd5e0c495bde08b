"""The runner of one attempt, seen from the pool: started, listened to, stopped, and cleared away."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from djinn_lab.jobs.batch import Outcome
from djinn_lab.pool.notebooks import messages as files
from djinn_lab.pool.notebooks.messages import AttemptEnded, FromRunner, KernelStarted, Task

RUNNER_COMMAND = (sys.executable, "-m", "djinn_lab.pool.notebooks.runner")
STOP_GRACE_S = 5.0
"""More than a runner takes to leave by itself."""
LEFT_GRACE_S = 10.0
LOG_TAIL_CHARACTERS = 300

log = logging.getLogger(__name__)


class NotebookRun:
    """``directory``: of this attempt alone; ``heard``: called with what the runner says on its way."""

    def __init__(self, directory: Path, task: Task, heard: Callable[[FromRunner], None]) -> None:
        self._directory = directory
        self._task = task
        self._heard = heard
        self._process: asyncio.subprocess.Process | None = None
        self._kernel: int | None = None
        self._stop = False

    async def run(self, source: bytes, environment: Mapping[str, str]) -> AttemptEnded:
        """From start to end of the process."""
        try:
            await asyncio.to_thread(self._prepare, source)
            if self._stop:
                return AttemptEnded(self._task.attempt, Outcome.STOPPED)
            with (self._directory / files.LOG_FILE).open("wb") as log_file:
                self._process = await asyncio.create_subprocess_exec(
                    *RUNNER_COMMAND,
                    str(self._directory),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log_file,
                    env=environment,
                    start_new_session=True,
                    limit=files.LINE_BYTES_MAX,
                )
        except OSError as error:
            return AttemptEnded(self._task.attempt, Outcome.LOST, f"its runner could not be started: {error}")
        if self._stop:
            self.stop()
        ended = await self._listen(self._process)
        return ended or self._lost(await self._process.wait())

    def stop(self) -> None:
        """Its end is what :meth:`run` returns, a moment later."""
        self._stop = True
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        asyncio.get_running_loop().call_later(STOP_GRACE_S, _kill, process)

    def _prepare(self, source: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._directory / files.SOURCE_FILE).write_bytes(source)
        (self._directory / files.TASK_FILE).write_bytes(msgspec.json.encode(self._task))

    async def _listen(self, process: asyncio.subprocess.Process) -> AttemptEnded | None:
        """What it says last, None when it ended without a word."""
        assert process.stdout is not None
        ended = None
        while line := await process.stdout.readline():
            try:
                message: FromRunner = msgspec.json.decode(line, type=FromRunner)
            except msgspec.DecodeError as error:
                log.error("the runner of %s sent what is no message: %s", self._task.job, error)
                _kill(process)
                continue
            if isinstance(message, AttemptEnded):
                ended = message
            elif isinstance(message, KernelStarted):
                self._kernel = message.process
            else:
                self._heard(message)
        await process.wait()
        if ended is None and self._kernel is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._kernel, signal.SIGKILL)  # with all that it started
        return ended

    def _lost(self, code: int) -> AttemptEnded:
        left = outcome_left(self._directory, self._task.attempt)
        if left is not None:
            return left
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        tail = (self._directory / files.LOG_FILE).read_text(errors="replace").strip()
        last = f": {tail.splitlines()[-1][-LOG_TAIL_CHARACTERS:]}" if code > 0 and tail else ""
        outcome = Outcome.STOPPED if self._stop else Outcome.LOST
        return AttemptEnded(self._task.attempt, outcome, f"its runner {how}{last}")


def outcome_left(directory: Path, attempt: int) -> AttemptEnded | None:
    """How the attempt ended, if its runner left word."""
    try:
        left = msgspec.json.decode((directory / files.OUTCOME_FILE).read_bytes(), type=AttemptEnded)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        log.warning("%s is no outcome: %s", directory / files.OUTCOME_FILE, error)
        return None
    return left if left.attempt == attempt else None


def executed_left(directory: Path) -> bytes | None:
    """The notebook as far as the runner got."""
    try:
        return (directory / files.EXECUTED_FILE).read_bytes()
    except FileNotFoundError:
        return None


async def until_gone(directory: Path) -> None:
    """Wait for the runner of a dead server, which leaves by itself; one that does not is killed."""
    try:
        lock = (directory / files.LOCK_FILE).open("r+")
    except FileNotFoundError:
        return
    with lock:
        deadline_s = asyncio.get_running_loop().time() + LEFT_GRACE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline_s:
                    deadline_s += LEFT_GRACE_S
                    with contextlib.suppress(ProcessLookupError, ValueError):
                        os.kill(int(lock.read()), signal.SIGKILL)
            await asyncio.sleep(0.05)


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
