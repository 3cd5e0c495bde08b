"""Jupyter's public test suite for kernels, against "Python (Djinn)" with a real pool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jupyter_kernel_test
import pytest
from real_pool import DEADLINE_S, PoolUnderTest

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", autouse=True)
def installed_kernel(pool: PoolUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The suite starts its kernel by name, in this process's environment."""
    data = tmp_path_factory.mktemp("jupyter")
    subprocess.run(
        [sys.executable, "-m", "djinn_lab.cli", "kernel", "install", "--user"],
        env={**pool.environment, "JUPYTER_DATA_DIR": str(data)},
        check=True,
        capture_output=True,
    )
    with (
        mock.patch.dict(os.environ, {"JUPYTER_DATA_DIR": str(data)}),
        mock.patch.object(jupyter_kernel_test, "TIMEOUT", DEADLINE_S),
    ):
        yield


class TestDjinnKernel(jupyter_kernel_test.KernelTests):
    kernel_name = "djinn"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "import torch\nprint('hello, world', (torch.ones(2) + 1).sum().item())"
    code_stderr = "import sys, torch\nprint('oops', torch.ones(1) + 1, file=sys.stderr)"
    completion_samples = (
        {"text": "zi", "matches": {"zip"}},
        {"text": "%%djinn --dry", "matches": {"--dry-run"}},
        {"text": "%djinn sta", "matches": {"status"}},
    )
    complete_code_samples = ("1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n", "%%djinn\n1\n\n")
    incomplete_code_samples = ("print('''hello", "def f(x):\n  x*2")
    invalid_code_samples = ("import = 7q",)
    code_page_something = "zip?"
    code_generate_error = "import torch\ntorch.ones(2, 3) @ torch.ones(4, 5)"
    code_execute_result = (
        {"code": "1+2+3", "result": "6"},
        {"code": "import torch; torch.arange(3) * 2", "result": "tensor([0, 2, 4])"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    )
    code_display_data = (
        {
            "code": "import torch\nfrom IPython.display import HTML, display\n"
            "display(HTML(f'<b>{(torch.ones(3) * 2).sum().item()}</b>'))",
            "mime": "text/html",
        },
    )
    code_history_pattern = "1?2*"
    supported_history_operations = (
        "tail",
        "search",
    )  # ipykernel answers ranges of old sessions by another number
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output\nclear_output()"

    def execute_helper(
        self, code: str, *args: Any, **options: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """As the suite's own, for which a message that a busy machine sends after a tenth of a second is
        missing."""
        asked = self.kc.execute(code, *args, **options)
        reply = self.get_non_kernel_info_reply(timeout=DEADLINE_S)
        assert reply is not None
        jupyter_kernel_test.validate_message(reply, "execute_reply", asked)
        messages: list[dict[str, Any]] = []
        while True:
            message = self.kc.get_iopub_msg(timeout=DEADLINE_S)
            if message["parent_header"].get("msg_id") != asked:
                continue
            jupyter_kernel_test.validate_message(message, message["msg_type"], asked)
            if message["content"].get("execution_state") == "idle":
                return reply, messages
            if message["msg_type"] not in ("status", "execute_input"):
                messages.append(message)

    def test_error(self) -> None:
        """As the suite's own, but for the line of progress of a cell that takes long on a busy machine."""
        self.flush_channels()
        reply, messages = self.execute_helper(self.code_generate_error)
        assert reply["content"]["status"] == "error"
        assert [one["msg_type"] for one in messages].count("error") == 1
        assert messages[-1]["msg_type"] in ("error", "update_display_data", "clear_output")

    def test_stdin(self) -> None:
        """A captured cell may ask the user."""
        self.flush_channels()
        self.kc.execute("import torch\nscale = float(input('factor? '))\n(torch.ones(2) * scale).tolist()")
        asked: dict[str, Any] = self.kc.get_stdin_msg(timeout=DEADLINE_S)
        assert asked["content"]["prompt"] == "factor? "
        self.kc.input("3")
        assert self.get_non_kernel_info_reply(timeout=DEADLINE_S)["content"]["status"] == "ok"
        self.flush_channels()
        _, shown = self.execute_helper("_")
        assert shown[0]["content"]["data"]["text/plain"] == "[3.0, 3.0]"

    def test_interrupt(self) -> None:
        """A captured loop stops, and the next cell runs."""
        self.flush_channels()
        loop = "while True:\n    x = x @ x\n    x.sum().item()"
        self.kc.execute(f"import torch\nx = torch.eye(300)\nprint('begun')\n{loop}")
        while self.kc.get_iopub_msg(timeout=DEADLINE_S)["msg_type"] != "stream":
            pass  # an interrupt that comes before the code begins is the kernel's own
        self.km.interrupt_kernel()
        reply = self.get_non_kernel_info_reply(timeout=DEADLINE_S)
        assert reply["content"]["status"] == "error"
        assert reply["content"]["ename"] in ("CellCancelled", "KeyboardInterrupt")
        self.flush_channels()
        _, shown = self.execute_helper("(torch.ones(2) + 1).tolist()")
        assert shown[0]["content"]["data"]["text/plain"] == "[2.0, 2.0]"


def test_the_suite_is_whole() -> None:
    """Every test of the suite has what it asks for, so that none is skipped."""
    samples = [name for name in dir(TestDjinnKernel) if name.startswith(("code_", "completion_"))]
    assert len(samples) > 9
    assert [name for name in samples if not getattr(TestDjinnKernel, name)] == []
