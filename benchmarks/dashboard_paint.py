"""How long after opening the dashboard does a browser paint, and show the pool's data?"""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure, skipped
from benchmarks.samples import Samples
from djinn_lab.cli.dashboard import LOOPBACK, dashboard_folder, free_port, serve_command
from djinn_lab.errors import UserError

NAME = "dashboard"
TITLES = {
    "first visitor of a new server": "cold",
    "later visitors": "warm",
}
GOAL = Goal(2)
BASELINE = "a static page"
START_TIMEOUT_S = 120.0
TIMEOUT_MS = 20_000.0
FIRST_PAINT = """() => new Promise(resolve => {
    const found = () => performance.getEntriesByName('first-contentful-paint')[0];
    const look = () => found() ? resolve(found().startTime) : setTimeout(look, 5);
    look();
})"""


class StaticPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>static</title><p>cpu:0")

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def measure(bench: Bench) -> list[Figure]:
    reason = missing_browser()
    if reason is not None:
        return [skipped(NAME, "first paint", "s", reason)]
    from playwright.sync_api import sync_playwright

    shown = bench.session.welcome.devices[0].device
    bench.session.signal_phase("COMPUTE")
    paints: dict[str, Samples] = {title: {OURS: [], BASELINE: []} for title in TITLES}
    data: dict[str, Samples] = {title: {OURS: [], BASELINE: []} for title in TITLES}
    with sync_playwright() as playwright, _static_server() as static:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        with closing(browser):
            _visit(browser, static, shown)
            for _ in range(bench.rounds(5, 1)):
                with dashboard_server() as url:
                    for title in TITLES:
                        _pair(browser, url, static, shown, paints[title], data[title])
    return [
        item
        for title in TITLES
        for item in (
            figure(NAME, f"first contentful paint, {title}", "s", paints[title], [GOAL]),
            figure(NAME, f"pool's devices shown, {title}", "s", data[title]),
        )
    ]


def _pair(browser: Any, url: str, static: str, shown: str, paints: Samples, data: Samples) -> None:
    for name, address in ((OURS, url), (BASELINE, static)):
        painted_s, shown_s = _visit(browser, address, shown)
        paints[name].append(painted_s)
        data[name].append(shown_s)


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def missing_browser() -> str | None:
    """Return why no page can be opened here, None where one can."""
    if chromium() is None:
        return "there is no Chromium on this machine (make browser installs it)"
    try:
        import playwright  # noqa: F401

        dashboard_folder()
    except ImportError:
        return "playwright is not installed"
    except UserError as error:
        return str(error)
    return None


def _visit(browser: Any, url: str, shown: str) -> tuple[float, float]:
    """Seconds from the start of navigation to (first contentful paint, the text ``shown`` visible), in a
    browser profile without any cache."""
    with closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(url, wait_until="commit")
        page.get_by_text(shown, exact=False).first.wait_for(state="visible", timeout=TIMEOUT_MS)
        shown_ms = page.evaluate("() => performance.now()")
        return page.evaluate(FIRST_PAINT) / 1e3, shown_ms / 1e3


@contextmanager
def dashboard_server() -> Iterator[str]:
    """What ``djinn-lab dashboard`` starts, listening."""
    port = free_port(0)
    command = serve_command(dashboard_folder(), port)
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    try:
        _wait_for(f"http://{LOOPBACK}:{port}/", process)
        yield f"http://{LOOPBACK}:{port}/dashboard"
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until the server answers anything; asking for ``/`` builds no page."""
    deadline = monotonic() + START_TIMEOUT_S
    while process.poll() is None and monotonic() < deadline:
        try:
            with urlopen(url, timeout=1):
                return
        except OSError as error:
            if hasattr(error, "code"):
                return
            sleep(0.05)
    raise UserError("The dashboard's server did not start.", "Try: djinn-lab dashboard --no-show")


@contextmanager
def _static_server() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer((LOOPBACK, 0), StaticPage)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
