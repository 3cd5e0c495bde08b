"""A real IPython kernel, driven as a front end drives it."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from jupyter_client.manager import KernelManager

TIMEOUT_S = 120.0
LOAD = "%load_ext djinn_lab\nimport torch"
EMPTY = "%unload_ext djinn_lab\nget_ipython().reset()"
"""Takes all names and the count of cells away, and closes the session."""


@dataclass
class CellResult:
    """``status``: ok, error or aborted. ``text``: all that was printed. ``shown``: what displays say in the
    end."""

    status: str = ""
    text: str = ""
    values: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    error: str = ""
    traceback: str = ""
    pager: str = ""


class NotebookKernel:
    def __init__(self, environment: dict[str, str], kernel_name: str = "python3") -> None:
        self._manager = KernelManager(kernel_name=kernel_name)
        self._environment = environment

    def __enter__(self) -> NotebookKernel:
        self.start()
        self.wait_until_ready()
        return self

    def start(self) -> None:
        self._manager.start_kernel(env=self._environment)
        self._client = self._manager.client()
        self._client.start_channels()

    def wait_until_ready(self) -> None:
        self._client.wait_for_ready(timeout=TIMEOUT_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def load(self) -> None:
        """Run the cell that loads the extension, the first of every notebook here."""
        assert self.run(LOAD).status == "ok"

    def send(self, code: str, **options: Any) -> str:
        """Send a cell to the kernel and return its message id."""
        return str(self._client.execute(code, **options))

    def run(self, code: str, **options: Any) -> CellResult:
        return self.result(self.send(code, **options))

    def result(self, message: str) -> CellResult:
        """Wait until the kernel has finished with the cell."""
        result = CellResult()
        deadline = time.monotonic() + TIMEOUT_S
        while not self._absorb(message, result):
            assert time.monotonic() < deadline, "the cell did not end"
        while True:
            reply = self._client.get_shell_msg(timeout=TIMEOUT_S)
            if reply["parent_header"].get("msg_id") == message:
                result.status = reply["content"]["status"]
                payload = reply["content"].get("payload", [])
                result.pager = "".join(
                    page["data"]["text/plain"] for page in payload if page["source"] == "page"
                )
                return result

    def _absorb(self, message: str, result: CellResult) -> bool:
        """Take one output into ``result``. True when the kernel is idle again."""
        try:
            output = self._client.get_iopub_msg(timeout=1.0)
        except queue.Empty:
            return False
        if output["parent_header"].get("msg_id") != message:
            return False
        content, kind = output["content"], output["msg_type"]
        if kind == "stream":
            result.text += content["text"]
        elif kind == "execute_result":
            result.values.append(content["data"].get("text/plain", ""))
        elif kind in ("display_data", "update_display_data"):
            result.shown.append(content["data"].get("text/plain", ""))
        elif kind == "error":
            result.error = content["ename"]
            result.traceback = "\n".join(content["traceback"])
        return kind == "status" and content["execution_state"] == "idle"

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        self._manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=TIMEOUT_S)

    def complete(self, code: str) -> list[str]:
        message = self._client.complete(code, len(code))
        while True:
            reply = self._client.get_shell_msg(timeout=TIMEOUT_S)
            if reply["parent_header"].get("msg_id") == message:
                return list(reply["content"]["matches"])


TakeKernels = Callable[[int], list[NotebookKernel]]


class KernelStock:
    """Kernels of one environment, started when first needed and emptied after each use. Use in a ``with``
    statement."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._kernels: list[NotebookKernel] = []

    def __enter__(self) -> KernelStock:
        return self

    def __exit__(self, *failure: object) -> None:
        self.discard()

    @contextmanager
    def taken(self, count: int) -> Iterator[list[NotebookKernel]]:
        """Yield ``count`` kernels with the extension and torch loaded, for one test at a time."""
        new = [NotebookKernel(self._environment) for _ in range(count - len(self._kernels))]
        self._kernels += new
        for kernel in new:
            kernel.start()
        for kernel in new:
            kernel.wait_until_ready()
        given = self._kernels[:count]
        for kernel in given:
            kernel.load()
        yield given
        for kernel in self._kernels[:count]:
            assert kernel.run(EMPTY, store_history=False).status == "ok"

    def discard(self) -> None:
        """Kill all kernels: a failed test may have left them in any state."""
        for kernel in self._kernels:
            kernel.kill()
        self._kernels.clear()
