"""A cell is announced before it is sent: a user types in a real JupyterLab, or executes a plain cell."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from notebook_kernel import NotebookKernel
from real_pool import PoolUnderTest, wait_for

pytestmark = pytest.mark.processes
CHROMIUM = Path("/usr/bin/chromium")
TOKEN = "typing"
HOLD = "%%djinn\nheld = torch.ones(2**18) * 2"
WAIT = "%djinn signal IO_WAIT --resume-in 600"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """Of this module's own: no other notebook is connected."""
    with PoolUnderTest(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_session_of_an_earlier_test(pool: PoolUnderTest) -> None:
    wait_for(lambda: phases(pool) == [])


def phases(pool: PoolUnderTest) -> list[str]:
    return [session.phase for session in pool.rest.memory().sessions if session.connection == "connected"]


def test_a_plain_cell_announces_the_next_captured_one(notebook: NotebookKernel, pool: PoolUnderTest) -> None:
    assert notebook.run(HOLD).status == "ok"
    assert notebook.run(WAIT).text.startswith("accepted")
    assert phases(pool) == ["IO_WAIT"]
    time.sleep(3.1)
    assert notebook.run("1 + 1").values == ["2"]
    wait_for(lambda: phases(pool) == ["SOON"])


def test_without_a_session_nothing_is_announced_or_started(
    notebook: NotebookKernel, pool: PoolUnderTest
) -> None:
    assert notebook.run("1 + 1").values == ["2"]
    assert notebook.run("get_ipython()._djinn_lab_extension.notebook.typed()").status == "ok"
    assert notebook.run("get_ipython()._djinn_lab_extension.notebook.has_session").values == ["False"]
    assert phases(pool) == []


def test_loading_leaves_no_text_and_typing_can_be_switched_off(pool: PoolUnderTest) -> None:
    with NotebookKernel(pool.environment) as kernel:
        loaded = kernel.run("%load_ext djinn_lab")
        assert (loaded.text, loaded.values, set(loaded.shown)) == ("", [], {""})
        assert "is not watched" in kernel.run("%djinn_config --no-typing").text
        again = kernel.run("%djinn_config --typing")
        assert "restores what was parked" in again.text
        assert set(again.shown) == {""}
        assert "--typing" in kernel.complete("%djinn_config --ty")
        assert kernel.run("%%djinn --no-typing\n1").error == "OptionError"


@pytest.fixture
def lab(pool: PoolUnderTest, tmp_path: Path) -> Iterator[str]:
    """The address of a notebook in a running JupyterLab."""
    cells = ["%load_ext djinn_lab\nimport torch", HOLD, WAIT, ""]
    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    document["metadata"]["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(document, tmp_path / "typing.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folders = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += [
        f"--IdentityProvider.token={TOKEN}",
        "--allow-root",
        "--LabApp.news_url=",
        f"--notebook-dir={tmp_path}",
    ]
    with (tmp_path / "lab.log").open("wb") as log:
        environment = {**pool.environment, **folders, "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings")}
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _answers(f"{address}/api?token={TOKEN}"))
        yield f"{address}/lab/tree/typing.ipynb?token={TOKEN}"
    finally:
        server.terminate()
        server.wait(20)


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def page() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        opened = browser.new_page(viewport={"width": 1300, "height": 900})
        opened.set_default_timeout(60_000)
        # keys that come before the kernel is there may open one, on a slow machine
        opened.add_locator_handler(
            opened.locator("dialog.jp-Dialog"), lambda dialog: dialog.locator(".jp-mod-accept").click()
        )
        yield opened
        browser.close()


def run_cell(page: Any, cell: Any, number: int) -> None:
    """Keys that come before the kernel is there are lost, so they are pressed again."""
    from playwright.sync_api import TimeoutError as NotInTime

    done = f"/\\[\\d+\\]/.test(document.querySelectorAll('.jp-InputPrompt')[{number}].textContent)"
    for _ in range(4):
        cell.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        with contextlib.suppress(NotInTime):
            page.wait_for_function(done, timeout=30_000)
            return
    raise AssertionError(f"cell {number} did not run")


@pytest.mark.browser
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 0, 1, 2)], ids=["once", "first-cell-twice"])
def test_typing_in_jupyterlab_is_announced(
    lab: str, page: Any, pool: PoolUnderTest, order: tuple[int, ...]
) -> None:
    page.goto(lab)
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    for number in order:
        run_cell(page, cells.nth(number), number)
    wait_for(lambda: phases(pool) == ["IO_WAIT"])
    page.wait_for_timeout(4200)
    assert phases(pool) == ["IO_WAIT"]
    wait_for(lambda: type_on(page, cells.nth(3)) and phases(pool) == ["SOON"])


def type_on(page: Any, cell: Any) -> bool:
    """Type a little more, as a user does: a dialog of a slow machine may have taken what came before."""
    cell.locator(".cm-content").click()
    page.keyboard.type("1 + ", delay=50)
    page.wait_for_timeout(1000)
    return True
