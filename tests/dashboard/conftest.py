"""A real pool with real cells, a real ``panel serve dashboard``, and a real browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_serving import free_port, start_dashboard, stop
from real_pool import PoolUnderTest

from djinn_lab.protocol.dashboard_login import with_code

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of this module's own; profiles are kept in it."""
    folder = tmp_path_factory.mktemp("dashboard")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJINN_CONFIG_DIR", str(folder / "config"))
        patch.delenv("DJINN_POOL", raising=False)
        patch.delenv("DJINN_TOKEN", raising=False)
        yield folder


@pytest.fixture(scope="module")
def pool(directory: Path) -> Iterator[PoolUnderTest]:
    """A running pool with two CPU devices."""
    (directory / "run").mkdir()
    with PoolUnderTest(directory / "run", memory_bytes=2**29) as running:
        yield running


@pytest.fixture(scope="module")
def session(pool: PoolUnderTest) -> Iterator[Any]:
    """A notebook's session on the pool, with one finished cell: two training steps of a small network."""
    import torch

    import djinn_lab

    opened = djinn_lab.connect(name="ann")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    features, labels = torch.randn(64, 16), torch.randint(0, 4, (64,))
    with opened.capture():
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(network(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def finished_job(session: Any, pool: PoolUnderTest) -> str:
    """The id of a finished cell's job."""
    return str(pool.wait_for_job(state="DONE").job)


@pytest.fixture(scope="module")
def dashboard_url(pool: PoolUnderTest, directory: Path) -> Iterator[str]:
    """The address of a dashboard that watches the pool."""
    port = free_port()
    process = start_dashboard(port, dict(os.environ), directory / "serve.log")
    yield f"http://127.0.0.1:{port}/dashboard"
    stop(process)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


class Visitor:
    """Opens addresses and notes console errors and requests to anywhere but this machine."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.complaints: list[str] = []

    def open(self, address: str) -> Any:
        context = self._browser.new_context(viewport={"width": 1360, "height": 900})
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", self._check_request)
        page.on("console", self._check_console)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.goto(with_code(address), wait_until="commit")
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _check_request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
            self.complaints.append(f"request to {request.url}")

    def _check_console(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text}")


@pytest.fixture
def visitor(chromium: Any) -> Iterator[Visitor]:
    """The test fails on what the visitor has to complain about."""
    visiting = Visitor(chromium)
    yield visiting
    visiting.close()
    assert visiting.complaints == []
