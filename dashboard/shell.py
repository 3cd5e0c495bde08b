"""The page around the pages: header, tabs, freshness, and the clock that keeps the shown page up to date."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence

import panel as pn

from djinn_lab.dashboard.admin.page import AdminPage
from djinn_lab.dashboard.background import Background, in_one_message
from djinn_lab.dashboard.board import Board, Page, shared_gate, shared_hub
from djinn_lab.dashboard.costs.page import CostsPage
from djinn_lab.dashboard.devices.page import DevicesPage
from djinn_lab.dashboard.gate import COOKIE, LOGIN_S, Gate, Login
from djinn_lab.dashboard.graph.page import SrgPage
from djinn_lab.dashboard.history.page import HistoryPage
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.jobs.page import JobsPage
from djinn_lab.dashboard.login_page import LoginPage
from djinn_lab.dashboard.memory.page import MemoryPage
from djinn_lab.dashboard.overview import Overview
from djinn_lab.dashboard.queueing.page import QueuePage
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.schedule.page import SchedulePage
from djinn_lab.dashboard.simulation.page import SimulationPage
from djinn_lab.dashboard.widgets.components import STATIC, Navigation
from djinn_lab.dashboard.widgets.panes import empty_state, html_pane, notice, show_html
from djinn_lab.dashboard.widgets.theme import current_look
from djinn_lab.dashboard.wizard.page import WizardPage
from djinn_lab.protocol.dashboard_login import HEADER, PARAMETER
from djinn_lab.units import format_clock

TICK_MS = 250
REDRAW_S = 1.0
"""Ages are in whole seconds, so a page is drawn this often without news, too."""
BEAT_MS = 1000
STALE_S = 3.0
PAGES: dict[str, tuple[str, Callable[[Board], Page]]] = {
    "overview": ("Overview", Overview),
    "srg": ("Graph", SrgPage),
    "schedule": ("Schedule", SchedulePage),
    "queue": ("Queue", QueuePage),
    "jobs": ("Jobs", JobsPage),
    "history": ("History", HistoryPage),
    "memory": ("Memory and KV", MemoryPage),
    "devices": ("Devices", DevicesPage),
    "costs": ("Cost model", CostsPage),
    "simulation": ("Simulator", SimulationPage),
    "wizard": ("Wizard", WizardPage),
    "admin": ("Admin", AdminPage),
}
OWN_PAGES = ("wizard",)
"""Pages that write files of the user who runs the dashboard."""
LOGGED_OUT = empty_state("Your login has ended", "Load this page again to log in.")


class OwnPageRefused:
    """Stand in place of a page that only the user who runs the dashboard gets."""

    def __init__(self, label: str) -> None:
        self.view = html_pane(notice(*own_page_refusal(label)))

    def enter(self) -> None:
        """Do nothing: there is no state."""

    def update(self, snapshot: Snapshot) -> None:
        """Do nothing: nothing changes."""


class Shell:
    """Show one browser session its pages, which are built when they are first shown. ``above``: what stands
    over each page."""

    above: Sequence[pn.viewable.Viewable] = ()

    def __init__(self, gate: Gate, login: Login) -> None:
        look = current_look()
        self._gate, self._login = gate, login
        self.board = Board(
            login.hub,
            Route(),
            Background(login.hub.executor),
            look,
            login.own,
            bool(login.cookie),
            gate.keeper,
        )
        self._names = [name for name in PAGES if name not in self._hidden(login)]
        self.navigation = Navigation(
            pages=self._tabs(login.hub.snapshot()),
            dark=look.dark,
            sizing_mode="stretch_width",
        )
        self.content = pn.Column(sizing_mode="stretch_width", margin=0)
        self._missing = html_pane()
        self.pages: dict[str, Page] = {}
        self._drawn_version = -1
        self._drawn_at_s = 0.0
        self._showing = False
        self.navigation.param.watch(lambda event: self._tab_chosen(event.new), "active")
        self.board.route.on_change(lambda route: self.board.background.soon(self._show))
        self._show()
        self._refresh()

    @property
    def page(self) -> Page:
        """The page that is shown."""
        return self.pages[self.navigation.active]

    def _hidden(self, login: Login) -> Sequence[str]:
        """Return the names of pages that this visitor does not get."""
        return () if login.own else OWN_PAGES

    def _tab_chosen(self, name: str) -> None:
        if not self._showing:  # else a page that is refused would lose its address, and the notice its cause
            self.board.route.update(page=name)

    def _tabs(self, snapshot: Snapshot) -> list[list[str]]:
        """Return names and labels of the tabs. After a login by token, the user who runs the dashboard sees
        those of own pages, too; they say how to come to them."""
        named = set(self._names)
        if not self._login.own and snapshot.user and snapshot.user == self._gate.keeper().user:
            named.update(OWN_PAGES)
        return [[name, PAGES[name][0]] for name in PAGES if name in named]

    def _no_page(self, name: str) -> str:
        if name in PAGES:
            return notice(*own_page_refusal(PAGES[name][0]))
        return notice(f"There is no page {name!r}.", "Choose one above.")

    def _make(self, name: str) -> Page:
        if name in OWN_PAGES and not self._login.own:
            return OwnPageRefused(PAGES[name][0])
        return PAGES[name][1](self.board)

    def _show(self) -> None:
        if not self._gate.holds(self._login):
            self._log_out()
            return
        asked = self.board.route.get("page", "overview")
        snapshot = self.board.hub.snapshot()
        name = asked if any(asked == tab for tab, _ in self._tabs(snapshot)) else "overview"
        self._missing.visible = name != asked
        show_html(self._missing, self._no_page(asked) if name != asked else "")
        if name not in self.pages:
            self.pages[name] = self._make(name)
        page = self.pages[name]
        self._showing = True
        self.navigation.active = name
        self._showing = False
        page.enter()
        page.update(snapshot)
        shown = [*self.above, self._missing, page.view]
        if list(self.content.objects) != shown:
            self.content.objects = shown

    def tick(self) -> None:
        """Bring the shown page up to the newest snapshot."""
        if not self._gate.holds(self._login):
            self._log_out()
        elif self.board.background.loaded:
            self._refresh()

    def _log_out(self) -> None:
        self.navigation.pages = []
        self.pages = {}
        self.content.objects = [pn.pane.HTML(LOGGED_OUT)]

    def _refresh(self) -> None:
        snapshot = self.board.hub.snapshot()
        now = time.monotonic()
        if snapshot.version == self._drawn_version and now - self._drawn_at_s < REDRAW_S:
            return
        self._drawn_version, self._drawn_at_s = snapshot.version, now
        text, detail, tone = self._badge(snapshot, now)
        tabs = self._tabs(snapshot)
        if tabs != self.navigation.pages:
            self.navigation.pages = tabs
        self.navigation.param.update(status=text, detail=detail, tone=tone)
        if self.navigation.active in self.pages:
            self.page.update(snapshot)

    def _badge(self, snapshot: Snapshot, now: float) -> tuple[str, str, str]:
        """Return text, explanation and tone of the badge. ``now``: monotonic seconds."""
        return freshness(snapshot, now)


def own_page_refusal(label: str) -> tuple[str, str]:
    """Return why a page of the user who runs the dashboard is not shown, and how that user comes to it."""
    return (
        f"The page {label} is not shown after a login by token.",
        "It writes files of the user who runs the dashboard. That user opens the address that "
        "djinn-lab dashboard prints.",
    )


def freshness(snapshot: Snapshot, now: float) -> tuple[str, str, str]:
    """Return text, explanation and tone of the badge; old data says how old it is, by the pool's clock."""
    if snapshot.status is None or snapshot.connection in ("absent", "refused", "connecting"):
        labels = {"absent": "No pool", "refused": "Access refused", "lost": "Pool lost"}
        tone = "warn" if snapshot.connection in ("absent", "connecting") else "bad"
        return labels.get(snapshot.connection, "Connecting"), snapshot.message, tone
    clock = format_clock(snapshot.status.now)
    age = now - (snapshot.polled_at or 0.0)
    if snapshot.connection == "lost" or age > STALE_S:
        return f"Stale: last update {clock}", snapshot.message or f"No update for {age:.0f} s", "bad"
    asking = f"{snapshot.status.user} ({snapshot.status.role})" if snapshot.status.user else ""
    return (
        "Live",
        f"Pool {snapshot.status.pool} {snapshot.status.version}, as {asking}; updated {clock}",
        "good",
    )


def build_page(make_shell: Callable[[Gate, Login], Shell] = Shell) -> pn.Template:
    """Build the page of one browser session, kept up to date until it closes."""
    pn.extension(design="native")
    gate = shared_gate()
    codes = (pn.state.session_args or {}).get(PARAMETER) or [b""]
    code = codes[0].decode(errors="replace") or pn.state.headers.get(HEADER, "")
    login = gate.enter(pn.state.cookies, code)
    if login is None:
        return _login_page(gate, bool(code))
    shell = make_shell(gate, login)
    if not gate.holds(login):  # the pool answered meanwhile
        return _login_page(gate)
    if pn.state.curdoc is not None:
        pn.state.curdoc.add_periodic_callback(in_one_message(shell.tick), TICK_MS)
        _keep_alive(shell.navigation, shell.board.background)
    dark = shell.board.look.dark
    return _template(shell.navigation, shell.content, dark, _keep_cookie(login) if codes[0] else "")


def _login_page(gate: Gate, late: bool = False) -> pn.Template:
    hub, look = shared_hub(), current_look()
    background = Background(hub.executor)
    navigation = Navigation(pages=[], dark=look.dark, status="", sizing_mode="stretch_width")
    if pn.state.curdoc is not None:
        _keep_alive(navigation, background)
    return _template(navigation, LoginPage(gate, background, late).view, look.dark, "")


def _keep_alive(navigation: Navigation, background: Background) -> None:
    """Tell the browser every second that the server lives, or it would load the page again."""

    def beat() -> None:
        if background.loaded:
            navigation.beat += 1

    assert pn.state.curdoc is not None
    pn.state.curdoc.add_periodic_callback(in_one_message(beat), BEAT_MS)
    pn.state.onload(background.page_loaded)


def _keep_cookie(login: Login) -> str:
    """Return the script that keeps a login's cookie, and takes the code out of the address."""
    name = f"{COOKIE}_'+location.port+'"
    more = f"; path=/; max-age={LOGIN_S:.0f}; samesite=strict'+(location.protocol=='https:'?'; secure':'')"
    return (
        f"document.cookie='{name}={login.cookie}{more};"
        f"const address=new URL(location);address.searchParams.delete('{PARAMETER}');"
        "history.replaceState(null,'',address);"
    )


def _template(navigation: Navigation, content: pn.viewable.Viewable, dark: bool, script: str) -> pn.Template:
    template = pn.Template((STATIC / "shell.html").read_text(), location=True)
    icon = base64.b64encode((STATIC / "favicon.svg").read_bytes()).decode()
    template.add_variable("favicon", f"data:image/svg+xml;base64,{icon}")
    template.add_variable("look", "dark" if dark else "light")
    template.add_variable("app_css", (STATIC / "app.css").read_text())
    template.add_variable("watchdog_js", (STATIC / "watchdog.js").read_text())
    template.add_variable("login_js", script)
    template.add_panel("navigation", navigation)
    template.add_panel("content", content)
    return template
