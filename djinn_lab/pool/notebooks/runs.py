"""The runner of one attempt, seen from the pool: started, listened to, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from djinn_lab.jobs.batch import AttemptOutcome, BatchNotebook
from djinn_lab.pool.notebooks import messages as files
from djinn_lab.pool.notebooks.attempt_files import read_outcome_file
from djinn_lab.pool.notebooks.descendants import kill_descendants
from djinn_lab.pool.notebooks.messages import SESSION_FILE, AttemptEnded, FromRunner, KernelStarted, Task
from djinn_lab.protocol.certificates import CERTIFICATE_VARIABLE, fingerprint
from djinn_lab.protocol.notebooks import CELL_OPTIONS_VARIABLE, DEADLINE_VARIABLE

RUNNER_COMMAND = (sys.executable, "-m", "djinn_lab.pool.notebooks.runner")
STOP_GRACE_S = 5.0
"""More than a runner takes to leave by itself."""
LOG_TAIL_CHARACTERS = 300
KEPT_VARIABLES = frozenset({"DJINN_CONFIG_DIR", "DJINN_TRACES"})
PRIVATE_PREFIXES = ("DJINN_", "PG")
"""Variables of the pool's environment that a notebook's kernel does not inherit, but for the kept ones."""

log = logging.getLogger(__name__)


class NotebookRun:
    """``directory``: of this attempt alone; ``on_message``: called with what the runner says on its way."""

    def __init__(self, directory: Path, task: Task, on_message: Callable[[FromRunner], None]) -> None:
        self._directory = directory
        self._task = task
        self._on_message = on_message
        self._process: asyncio.subprocess.Process | None = None
        self._kernel: int | None = None
        self._stop = False

    async def run(self, source: bytes, environment: Mapping[str, str]) -> AttemptEnded:
        """Run the process from start to end."""
        try:
            await asyncio.to_thread(self._prepare, source)
            if self._stop:
                return AttemptEnded(self._task.attempt, AttemptOutcome.STOPPED)
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
            return AttemptEnded(
                self._task.attempt, AttemptOutcome.LOST, f"its runner could not be started: {error}"
            )
        if self._stop:
            self.stop()
        ended = await self._listen(self._process)
        return ended or self._lost(await self._process.wait())

    def stop(self) -> None:
        """Stop the runner; :meth:`run` returns a moment later."""
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
        """Handle the runner's messages. Returns the last one, None when it ended without it."""
        assert process.stdout is not None
        ended = None
        while line := await process.stdout.readline():
            try:
                message: FromRunner = msgspec.json.decode(line, type=FromRunner)
            except msgspec.DecodeError as error:
                log.error("the runner of %s sent what is not a message: %s", self._task.job, error)
                _kill(process)
                continue
            if isinstance(message, AttemptEnded):
                ended = message
            elif isinstance(message, KernelStarted):
                self._kernel = message.process
            else:
                self._on_message(message)
        await process.wait()
        if ended is None and self._kernel is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._kernel, signal.SIGKILL)  # with all that it started
        return ended

    def _lost(self, code: int) -> AttemptEnded:
        left = read_outcome_file(self._directory, self._task.attempt)
        if left is not None:
            return left
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        tail = (self._directory / files.LOG_FILE).read_text(errors="replace").strip()
        last = f": {tail.splitlines()[-1][-LOG_TAIL_CHARACTERS:]}" if code > 0 and tail else ""
        outcome = AttemptOutcome.STOPPED if self._stop else AttemptOutcome.LOST
        return AttemptEnded(self._task.attempt, outcome, f"its runner {how}{last}")


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        kill_descendants(process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def kernel_environment(
    notebook: BatchNotebook, url: str, token: str, directory: Path, certificate: str
) -> dict[str, str]:
    """Make the kernel's environment: the pool's own, without its secrets, and with the notebook's terms for
    every cell. ``directory``: of the attempt. ``certificate``: the pool's, as PEM, empty for none."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or not name.startswith(PRIVATE_PREFIXES)
    }
    kept["DJINN_POOL"], kept["DJINN_TOKEN"] = url, token
    if certificate:
        kept[CERTIFICATE_VARIABLE] = fingerprint(certificate)
    kept["DJINN_SESSION_FILE"] = str(directory / SESSION_FILE)
    kept[CELL_OPTIONS_VARIABLE] = shlex.join(_cell_options(notebook))
    kept["JPY_SESSION_NAME"] = f"{notebook.name}.ipynb"
    if notebook.deadline_s is not None:
        kept[DEADLINE_VARIABLE] = repr(notebook.deadline_s)
    return kept


def _cell_options(notebook: BatchNotebook) -> Iterator[str]:
    """List options as ``%djinn_config`` takes them."""
    yield from (f"--priority={notebook.priority}", "--progress-after=-1")
    if notebook.target is not None:
        yield f"--target={notebook.target}"
    yield from (f"--tolerate={taint}" for taint in notebook.tolerates)
