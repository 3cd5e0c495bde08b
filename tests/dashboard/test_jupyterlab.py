"""A real JupyterLab, in a real browser: the tile of the dashboard, and the extension."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from dashboard_serving import free_port
from device_kind import KIND
from real_pool import PoolUnderTest, wait_for

import djinn_lab
from djinn_lab.errors import CellCancelled
from djinn_lab.protocol.dashboard_login import HEADER

pytestmark = [pytest.mark.browser, pytest.mark.processes]

TOKEN = "of-jupyter"
BASE = "/user/ann/"
WAIT_MS = 60_000
EXTENSION = Path(__file__).parents[2] / "kernels" / "jupyterlab"
NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}
        for source in ("%%djinn\ntorch.ones(2)", "print('plain')")
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    "nbformat": 4,
    "nbformat_minor": 4,
}


@pytest.fixture(scope="module")
def lab(pool: PoolUnderTest, directory: Path) -> Iterator[str]:
    """The address of a JupyterLab below a path of its own, as a hub gives it. The pool has a second user, so
    that the dashboard asks strangers for a login."""
    pool.rest.create_user("bob")
    port, home = free_port(), directory / "jupyter"
    _install_extension(home)
    folders = {f"JUPYTER_{kind}_DIR": str(home / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    settings = {"token": TOKEN, "base_url": BASE, "port": port, "port_retries": 0, "root_dir": directory}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"]
    command += [f"--ServerApp.{name}={value}" for name, value in settings.items()]
    log = directory / "lab.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=dict(os.environ) | folders, stdout=output, stderr=output)
    try:
        wait_for(lambda: _listens(port))
        yield f"http://127.0.0.1:{port}{BASE}"
    finally:
        process.terminate()
        process.wait(20)


def _install_extension(home: Path) -> None:
    """As the wheel installs it."""
    extensions, settings = home / "DATA" / "labextensions", home / "CONFIG" / "jupyter_server_config.d"
    for folder in (extensions, settings):
        folder.mkdir(parents=True)
    (extensions / "djinn-lab").symlink_to(EXTENSION / "built")
    (settings / "djinn-lab.json").symlink_to(EXTENSION / "config" / "djinn-lab.json")


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_tile_of_the_launcher_opens_the_dashboard_without_another_login(
    chromium: Any, lab: str, directory: Path
) -> None:
    context = chromium.new_context(viewport={"width": 1360, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{lab}lab?token={TOKEN}", wait_until="commit")
    tile = page.locator(".jp-LauncherCard", has_text="Djinn Lab")
    tile.wait_for()
    assert tile.locator("img").evaluate("image => image.naturalWidth") > 0
    with context.expect_page() as opened:
        tile.click()
    dashboard = opened.value
    dashboard.set_default_timeout(WAIT_MS)
    dashboard.wait_for_selector(f".card >> text={KIND}:0")
    dashboard.wait_for_selector("text=Live")
    assert dashboard.url.startswith(f"{lab}djinn/dashboard")
    dashboard.click("role=tab[name='Jobs']")
    dashboard.wait_for_selector("role=heading[name='Jobs']")
    context.close()
    printed = (directory / "lab.log").read_text()
    assert "login=" not in printed
    own = re.search(r"The dashboard is at (http://127\.0\.0\.1:\d+\S+)", printed)
    assert own is not None
    for headers in ({}, {HEADER: "1-made-up"}):
        html = httpx.get(own[1], headers=headers, trust_env=False, timeout=60).text
        assert f"{KIND}:0" not in html


def test_nobody_reaches_it_without_a_login_at_jupyter(lab: str) -> None:
    answer = httpx.get(f"{lab}djinn/dashboard", trust_env=False, follow_redirects=False, timeout=60)
    assert answer.status_code in (302, 403)


def test_sidebar_shows_the_pool_and_stops_a_cell(
    chromium: Any, lab: str, directory: Path, pool: PoolUnderTest
) -> None:
    (directory / "marked.ipynb").write_text(json.dumps(NOTEBOOK))
    context = chromium.new_context(viewport={"width": 1360, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{lab}lab/tree/marked.ipynb?token={TOKEN}", wait_until="commit")
    page.click(".djinn-status:has-text('2 of 2 devices idle')")
    sidebar = page.locator(".djinn-sidebar")
    sidebar.locator("li", has_text=f"{KIND}:1").wait_for()
    page.locator(".jp-CodeCell.djinn-captured").wait_for()
    assert "torch.ones" in page.locator(".jp-CodeCell.djinn-captured").inner_text()

    opened = djinn_lab.connect(name="long.ipynb")
    with opened.capture("In [7]", wait=False) as cell:
        x = torch.eye(400).cuda()
        for _ in range(20_000):
            x = x @ x
    row = sidebar.locator("li:has(button)", has_text="In [7] of long.ipynb")
    row.wait_for()
    row.locator("button", has_text="Stop").click()
    row.wait_for(state="detached")
    with pytest.raises(CellCancelled):
        cell.handle.get()
    opened.close()

    pool.kill()
    page.wait_for_selector(".djinn-status:has-text('no pool')")
    sidebar.locator("text=djinn-lab pool start").wait_for()
    context.close()


def test_extension_is_of_these_sources() -> None:
    """`make labextension` builds it."""
    for line in (EXTENSION / "built" / "sources.sha256").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((EXTENSION / name).read_bytes()).hexdigest() == digest, name
