"""The page around the pages: header, tabs, freshness, and the clock that keeps the shown page up to date."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

import panel as pn

from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.board import Board, Page, shared_hub
from djinn_lab.dashboard.graph.page import SrgPage
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.dashboard.jobs.page import JobsPage
from djinn_lab.dashboard.memory.page import MemoryPage
from djinn_lab.dashboard.overview import Overview
from djinn_lab.dashboard.queueing.page import QueuePage
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.schedule.page import SchedulePage
from djinn_lab.dashboard.simulation.page import SimulationPage
from djinn_lab.dashboard.widgets.components import STATIC, Navigation
from djinn_lab.dashboard.widgets.theme import current_look
from djinn_lab.dashboard.wizard.page import WizardPage

TICK_MS = 400
STALE_S = 3.0
PAGES: dict[str, tuple[str, Callable[[Board], Page]]] = {
    "overview": ("Overview", Overview),
    "srg": ("Graph", SrgPage),
    "schedule": ("Schedule", SchedulePage),
    "queue": ("Queue", QueuePage),
    "jobs": ("Jobs", JobsPage),
    "memory": ("Memory and KV", MemoryPage),
    "simulation": ("Simulator", SimulationPage),
    "wizard": ("Wizard", WizardPage),
}


class Shell:
    """One browser session. Pages are built when they are first shown."""

    def __init__(self, hub: Hub) -> None:
        look = current_look()
        self.board = Board(hub, Route(), Background(hub.executor), look)
        self.navigation = Navigation(
            pages=[[name, label] for name, (label, _) in PAGES.items()],
            dark=look.dark,
            sizing_mode="stretch_width",
        )
        self.content = pn.Column(sizing_mode="stretch_width", margin=0)
        self.pages: dict[str, Page] = {}
        self._beat_at = 0.0
        self.navigation.param.watch(lambda event: self.board.route.update(page=event.new), "active")
        self.board.route.on_change(lambda route: self.board.background.soon(self._show))
        self._show()
        self._refresh()

    @property
    def page(self) -> Page:
        """The page that is shown."""
        return self.pages[self.navigation.active]

    def _show(self) -> None:
        name = self.board.route.get("page", "overview")
        name = name if name in PAGES else "overview"
        if name not in self.pages:
            self.pages[name] = PAGES[name][1](self.board)
        page = self.pages[name]
        self.navigation.active = name
        if list(self.content.objects) != [page.view]:
            self.content.objects = [page.view]
        page.enter()
        page.update(self.board.hub.snapshot())

    def tick(self) -> None:
        """Bring the shown page up to the newest snapshot."""
        if self.board.background.loaded:
            self._refresh()

    def _refresh(self) -> None:
        snapshot = self.board.hub.snapshot()
        text, detail, tone = freshness(snapshot, time.monotonic())
        self.navigation.param.update(status=text, detail=detail, tone=tone)
        now = time.monotonic()
        if now - self._beat_at >= 1.0:
            self._beat_at = now
            self.navigation.beat += 1
        self.page.update(snapshot)


def freshness(snapshot: Snapshot, now: float) -> tuple[str, str, str]:
    """Text, explanation and tone of the badge; old data says how old it is, by the pool's clock."""
    if snapshot.status is None or snapshot.connection in ("absent", "refused", "connecting"):
        labels = {"absent": "No pool", "refused": "Access refused", "lost": "Pool lost"}
        tone = "warn" if snapshot.connection in ("absent", "connecting") else "bad"
        return labels.get(snapshot.connection, "Connecting"), snapshot.message, tone
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.status.now))
    age = now - (snapshot.polled_at or 0.0)
    if snapshot.connection == "lost" or age > STALE_S:
        return f"Stale: last update {clock}", snapshot.message or f"No update for {age:.0f} s", "bad"
    asking = f"{snapshot.status.user} ({snapshot.status.role})" if snapshot.status.user else ""
    return (
        "Live",
        f"Pool {snapshot.status.pool} {snapshot.status.version}, as {asking}; updated {clock}",
        "good",
    )


def build_page() -> pn.Template:
    """The page of one browser session, kept up to date until it closes."""
    pn.extension(design="native")
    shell = Shell(shared_hub())
    if pn.state.curdoc is not None:
        pn.state.curdoc.add_periodic_callback(shell.tick, TICK_MS)
        pn.state.onload(shell.board.background.page_loaded)
    template = pn.Template((STATIC / "shell.html").read_text(), location=True)
    icon = base64.b64encode((STATIC / "favicon.svg").read_bytes()).decode()
    template.add_variable("favicon", f"data:image/svg+xml;base64,{icon}")
    template.add_variable("look", "dark" if shell.board.look.dark else "light")
    template.add_variable("app_css", (STATIC / "app.css").read_text())
    template.add_variable("watchdog_js", (STATIC / "watchdog.js").read_text())
    template.add_panel("navigation", shell.navigation)
    template.add_panel("content", shell.content)
    return template
