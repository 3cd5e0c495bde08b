"""``python -m djinn_lab.pool.notebooks.runner DIRECTORY``: runs one notebook, once, for the pool.

The kernel is the project's own, in which every cell is captured; it finds the pool by the environment, with a
token of its own. What it has done is written after each cell and every few seconds, so that it survives
this process's end. When the pool closes this process's standard input, or dies, the kernel is
interrupted, has a moment to leave its cell, and is killed with all processes that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from djinn_lab.jobs.batch import AttemptOutcome
from djinn_lab.pool.notebooks import messages as files
from djinn_lab.pool.notebooks.captured_kernel import KERNEL_NAME, kernel_folder, kernel_spec
from djinn_lab.pool.notebooks.descendants import kill_descendants
from djinn_lab.pool.notebooks.messages import AttemptEnded, CellBegins, FromRunner, KernelStarted, Task
from djinn_lab.protocol.notebook_format import nbformat
from djinn_lab.system.locks import lock as wait_for_lock
from djinn_lab.system.processes import adopt_orphans, end_with_parent

KERNEL_START_TIMEOUT_S = 300
WRITE_EVERY_S = 5.0
INTERRUPT_GRACE_S = 2.0
LEAVE_WITHIN_S = 4.0
"""From the request to stop until the runner ends itself, whatever it is at."""
STOP_SEEN_S = 0.5
SKIPPED_TAG = "skip-execution"
MESSAGE_CHARACTERS_MAX = 500
SOCKET_FOLDER_BYTES_MAX = 90
"""A socket's whole path has 107 on Linux, and fewer elsewhere (unix(7): sun_path)."""

OVERWRITTEN = re.compile(r"^.*\r(?=[^\n])", re.MULTILINE)
"""What a carriage return takes back. nbclient's own has no ``^`` and finds the same, but looks from every
character on: a line of a megabyte would take it hours, in which nothing else runs here."""

log = logging.getLogger(__name__)


class InstalledKernel(KernelSpecManager):
    """Knows the kernel of this very installation, whatever is installed for Jupyter."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        folder = kernel_folder()
        template = msgspec.json.decode((folder / "kernel.json").read_bytes())
        return KernelSpec(resource_dir=str(folder), **kernel_spec(template))


class Runner:
    """Run one attempt. ``pool``: the stream for messages to the pool."""

    def __init__(self, directory: Path, pool: BinaryIO) -> None:
        self._directory = directory
        self._pool = pool
        self._task = msgspec.json.decode((directory / files.TASK_FILE).read_bytes(), type=Task)
        source = (directory / files.SOURCE_FILE).read_text()
        self._notebook = nbformat.reads(source, as_version=4)  # type: ignore[no-untyped-call]
        clear_outputs(self._notebook)
        self._numbers = _code_cells(self._notebook)
        self._cell = 0
        self._cleanup = contextlib.ExitStack()
        self._manager = AsyncKernelManager(
            kernel_name=KERNEL_NAME,
            kernel_spec_manager=InstalledKernel(),
            connection_file=str(directory / "connection.json"),
            transport="ipc",
            ip=str(_socket_folder(directory, self._cleanup) / "kernel"),
        )
        self._stopping = asyncio.Event()
        self._kernel: int | None = None

    async def run(self) -> None:
        """Run until the notebook is through, a cell fails, or the pool says stop."""
        self._watch_pool()
        stopped = asyncio.ensure_future(self._stopping.wait())
        writing = asyncio.ensure_future(self._write_now_and_then())
        try:
            ended = await self._until_ended(stopped)
            self._write()
            _write_whole(self._directory / files.OUTCOME_FILE, msgspec.json.encode(ended))
            if ended.outcome != AttemptOutcome.STOPPED and self._manager.has_kernel:
                await self._manager.shutdown_kernel()
        finally:
            writing.cancel()
            stopped.cancel()
            self._kill_kernel()
            self._cleanup.close()
        self._send(ended)

    async def _until_ended(self, stopped: asyncio.Future[Literal[True]]) -> AttemptEnded:
        executing = asyncio.ensure_future(self._execute())
        waits: list[asyncio.Future[Any]] = [executing, stopped]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not executing.done():
            await self._interrupt(executing)
        ended = executing.result() if executing.done() else self._ended(AttemptOutcome.STOPPED)
        if ended.outcome == AttemptOutcome.FAILED:
            # A pool that dies makes the cell fail, too: which of the two was first?
            await asyncio.wait([stopped], timeout=STOP_SEEN_S)
            if stopped.done():
                return self._ended(AttemptOutcome.STOPPED)
        return ended

    async def _execute(self) -> AttemptEnded:
        from nbclient import NotebookClient  # which imports nbformat, and it is here by now
        from nbclient import client as nbclients
        from nbclient.exceptions import CellExecutionError, DeadKernelError

        vars(nbclients)["_RGX_CARRIAGERETURN"] = OVERWRITTEN
        client = NotebookClient(
            self._notebook,
            km=self._manager,
            timeout=None,
            startup_timeout=KERNEL_START_TIMEOUT_S,
            skip_cells_with_tag=SKIPPED_TAG,
            coalesce_streams=True,
            on_cell_start=self._cell_starts,
            on_cell_executed=self._cell_executed,
        )
        try:
            await self._manager.start_kernel(
                extra_arguments=["--HistoryManager.hist_file=:memory:"],
                cwd=self._task.folder,
                preexec_fn=end_with_parent,
                umask=self._task.umask,
            )
            assert isinstance(self._manager.provisioner, LocalProvisioner)
            self._kernel = self._manager.provisioner.pid
            assert self._kernel is not None
            self._send(KernelStarted(self._kernel))
            await client.async_execute()
        except CellExecutionError as error:
            return self._ended(
                AttemptOutcome.FAILED, f"{error.ename}{self._place()}{_first_line(error.evalue)}"
            )
        except DeadKernelError:
            return self._ended(
                AttemptOutcome.FAILED, f"the kernel died{self._place()} (killed, or out of memory?)"
            )
        except (RuntimeError, OSError) as error:
            log.exception("the kernel could not be used")
            return self._ended(
                AttemptOutcome.FAILED, f"the kernel could not be used{self._place()}{_first_line(str(error))}"
            )
        finally:
            if client.kc is not None:
                client.kc.stop_channels()
        return self._ended(AttemptOutcome.DONE)

    async def _interrupt(self, executing: asyncio.Future[AttemptEnded]) -> None:
        """Let the cell leave by KeyboardInterrupt, for a moment."""
        if self._manager.has_kernel:
            await self._manager.interrupt_kernel()
        await asyncio.wait([executing], timeout=INTERRUPT_GRACE_S)
        if not executing.done():
            executing.cancel()

    def _ended(self, outcome: AttemptOutcome, message: str = "") -> AttemptEnded:
        text = "".join(one if one.isprintable() else "?" for one in message[:MESSAGE_CHARACTERS_MAX])
        return AttemptEnded(self._task.attempt, outcome, text, self._cell or None, len(self._numbers))

    def _place(self) -> str:
        return f" in cell {self._cell} of {len(self._numbers)}" if self._cell else " at its start"

    # -- from the client of the kernel ---------------------------------------------------------------------

    def _cell_starts(self, cell: object, cell_index: int) -> None:
        number = self._numbers.get(cell_index)
        if number is not None:
            self._cell = number
            self._send(CellBegins(number, len(self._numbers)))

    def _cell_executed(self, cell: object, cell_index: int, execute_reply: object) -> None:
        self._write()

    # -- to the pool and the disk --------------------------------------------------------------------------

    def _send(self, message: FromRunner) -> None:
        with contextlib.suppress(BrokenPipeError):  # the pool died; its end is watched for elsewhere
            self._pool.write(msgspec.json.encode(message) + b"\n")
            self._pool.flush()

    def _write(self) -> None:
        text: str = nbformat.writes(self._notebook, version=4)  # type: ignore[no-untyped-call]
        _write_whole(self._directory / files.EXECUTED_FILE, text.encode(errors="replace"))

    async def _write_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            self._write()

    # -- its end -------------------------------------------------------------------------------------------

    def _watch_pool(self) -> None:
        loop = asyncio.get_running_loop()

        def watch() -> None:
            while os.read(sys.stdin.fileno(), 4096):
                pass
            loop.call_soon_threadsafe(self._stopping.set)
            threading.Event().wait(LEAVE_WITHIN_S)
            self._kill_kernel()
            os._exit(1)

        threading.Thread(target=watch, name="watch pool", daemon=True).start()

    def _kill_kernel(self) -> None:
        """Kill the kernel, with all processes that it started. Those whose parents ended are this process's
        own by now."""
        if self._kernel is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._kernel, signal.SIGKILL)
            kill_descendants(os.getpid())


def _socket_folder(directory: Path, cleanup: contextlib.ExitStack) -> Path:
    """Choose a folder for the kernel's sockets. They are files, since a free port may be another kernel's
    before this one has it. Beside the notebook, where that path is short enough for a socket's."""
    if len(os.fsencode(directory)) <= SOCKET_FOLDER_BYTES_MAX:
        return directory
    return Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="djinn-kernel-")))


def clear_outputs(notebook: nbformat.NotebookNode) -> None:
    """Clear all outputs, so that what a cell shows afterwards is of this run."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def _code_cells(notebook: nbformat.NotebookNode) -> dict[int, int]:
    """Number the cells that are run, from 1, by their place in the notebook."""
    places = [
        place
        for place, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
        and cell.source.strip()
        and SKIPPED_TAG not in cell.metadata.get("tags", [])
    ]
    return {place: number for number, place in enumerate(places, 1)}


def _first_line(text: str) -> str:
    """Shorten a message to its first line; details and advice follow it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[0]}" if lines else ""


def _write_whole(path: Path, content: bytes) -> None:
    """Replace the file at once: a reader sees all the new content, or the former."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    pool = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the kernel and libraries print is no message to the pool
    adopt_orphans()
    directory = Path(sys.argv[1])
    with (directory / files.LOCK_FILE).open("w") as lock:
        wait_for_lock(lock)
        lock.write(str(os.getpid()))
        lock.flush()
        asyncio.run(Runner(directory, pool).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
