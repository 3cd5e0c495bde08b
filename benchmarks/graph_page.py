"""How long does the dashboard take to draw the graph of 50,000 ops, and to answer a click on it?"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bench import Bench
from benchmarks.dashboard_paint import chromium, dashboard_server, missing_browser
from benchmarks.figures import OURS, Figure, Goal, figure, skipped
from djinn_lab.client.rest import PoolClient

NAME = "graph-page"
OPS = 50_000
BLOCKS = 24
WIDTH = 16
PAINT, CLICK = Goal(2), Goal(0.2)
TIMEOUT_MS = 60_000.0
CLICKS = 2
"""Of a visit: the first ones open groups, so that boxes are added, which the probe sees."""
PROBE = Path(__file__).with_suffix(".js")
"""Defines ``graphPage`` in every page."""
LOADED, GRAPH = "() => Boolean(window.Bokeh)", "() => graphPage.graphDrawn()"
SCHEDULE = "() => graphPage.scheduleDrawn()"


class Block(nn.Module):
    """Seven ops: a normalised pair of products with an activation, beside a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(WIDTH), nn.GELU()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.down(self.act(self.up(self.norm(x))))
        return x + change


def measure(bench: Bench) -> list[Figure]:
    reason = missing_browser()
    if reason is not None:
        return [skipped(NAME, "graph drawn", "s", reason)]
    from playwright.sync_api import sync_playwright

    job, ops = _long_cell(bench)
    cold: list[float] = []
    warm: list[float] = []
    schedule: list[float] = []
    clicks: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        with closing(browser):
            for _ in range(bench.rounds(5, 1)):
                with dashboard_server() as url:
                    _visit(browser, url, LOADED)
                    graph = f"{url}?page=srg&job={job}"
                    cold.append(_visit(browser, graph, GRAPH))
                    warm.append(_visit(browser, graph, GRAPH))
                    schedule.append(_visit(browser, f"{url}?page=schedule&job={job}", SCHEDULE))
                    clicks += _clicks(browser, graph, CLICKS)
    facts = {"ops": ops, "measured": "from the start of navigation until the frame in which it is drawn"}
    pointer = {"ops": ops, "measured": "from pressing the button until the frame with the changed boxes"}
    return [
        figure(NAME, "graph drawn, first visitor of that graph", "s", {OURS: cold}, [PAINT], **facts),
        figure(NAME, "graph drawn, later visitors", "s", {OURS: warm}, [PAINT], **facts),
        figure(NAME, "schedule drawn, first visitor", "s", {OURS: schedule}, [PAINT], **facts),
        figure(NAME, "click on a box, until it is drawn", "s", {OURS: clicks}, [CLICK], **pointer),
    ]


def _long_cell(bench: Bench) -> tuple[str, int]:
    """Run a cell of about OPS ops in modules. Returns its job and the number of its ops."""
    model = nn.Sequential(*(Block() for _ in range(BLOCKS))).eval()
    with torch.no_grad(), bench.session.capture("a long cell"):
        x = torch.zeros(1, WIDTH)
        for _ in range(-(-OPS // (7 * BLOCKS))):
            x = model(x)
        x.sum().item()
    reader = PoolClient.find()
    newest = next(job for job in reader.jobs() if job.cell == "a long cell")
    return newest.job, newest.ops_total


def _visit(browser: Any, url: str, drawn: str) -> float:
    """Return seconds from the start of navigation until ``drawn``, in a browser profile without any cache."""
    with closing(browser.new_context(viewport={"width": 1360, "height": 900})) as context:
        page = context.new_page()
        page.add_init_script(path=str(PROBE))
        page.goto(url, wait_until="commit")
        page.wait_for_function(drawn, timeout=TIMEOUT_MS, polling=10)
        return float(page.evaluate("() => graphPage.nextFrame()")) / 1e3


def _clicks(browser: Any, url: str, count: int) -> list[float]:
    """Return the seconds that each of some clicks took: each on the group that is nearest to the middle, and
    on an op where no group is in view."""
    found: list[float] = []
    with closing(browser.new_context(viewport={"width": 1360, "height": 900})) as context:
        page = context.new_page()
        page.add_init_script(path=str(PROBE))
        page.goto(url, wait_until="commit")
        page.wait_for_function(GRAPH, timeout=TIMEOUT_MS)
        page.wait_for_timeout(1000)
        for _ in range(count):
            spot = page.evaluate("() => graphPage.spot()")
            page.evaluate("(group) => graphPage.watchClick(group)", spot["group"])
            page.mouse.click(spot["x"], spot["y"])
            found.append(float(page.evaluate("() => graphPage.clicked")) / 1e3)
            page.wait_for_timeout(500)
    return found
