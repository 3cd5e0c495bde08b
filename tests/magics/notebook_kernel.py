"""A real IPython kernel, driven as a front end drives it."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from jupyter_client.manager import KernelManager

TIMEOUT_S = 60.0


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
        self._manager.start_kernel(env=self._environment)
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=TIMEOUT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def send(self, code: str, **options: Any) -> str:
        """Queue a cell; its message id."""
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
        """Take one output; True when the kernel is idle again."""
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
