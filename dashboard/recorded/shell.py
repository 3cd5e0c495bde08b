"""The page around the pages of a recording. Another moment is another pool: its pages are built anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import panel as pn

from djinn_lab.dashboard.board import Page
from djinn_lab.dashboard.gate import Gate, Login
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.dashboard.recorded.moment_bar import MomentBar
from djinn_lab.dashboard.recorded.pool import RecordedPool
from djinn_lab.dashboard.recorded.run import RecordedRun, SharedRuns
from djinn_lab.dashboard.shell import PAGES, Shell, build_page
from djinn_lab.dashboard.widgets.panes import empty_state, html_pane, notice
from djinn_lab.errors import DjinnError
from djinn_lab.pool.database.recording import Recording
from djinn_lab.units import format_clock

SAID = ("overview", "srg", "queue", "jobs", "memory", "simulation")
"""Pages that a recording says something of, or that need no pool."""
HIDDEN = ("wizard", "admin")
"""Pages about this machine, and of changes."""


class UnsaidPage:
    """Stands in place of a page of which a recording says nothing."""

    def __init__(self, label: str) -> None:
        text = "It has the cells, and what the queue and session memory decided. A live pool shows this page."
        self.view = html_pane(empty_state(f"The recording says nothing of this: {label}", text))

    def enter(self) -> None:
        """Do nothing: there is no state."""

    def update(self, snapshot: Snapshot) -> None:
        """Do nothing: nothing changes."""


class RecordedShell(Shell):
    """Show one browser session a recording. State: the address holds the run, and the moment in seconds since
    the epoch."""

    def __init__(self, gate: Gate, login: Login, path: Path) -> None:
        self._path = path
        self._run: RecordedRun | None = None
        self._named = ""
        self._moment: float | None = None
        self._asked: tuple[str, float] | None = None
        self.bar = MomentBar(self._move, self._choose)
        self.above = (self.bar.view,)
        self._begun = False
        super().__init__(gate, login)

    def _refresh(self) -> None:
        if not self._begun and self.board.background.loaded:  # a page that is built earlier gets lost
            self._begun = True
            self._open()
        super()._refresh()

    def _hidden(self, login: Login) -> Sequence[str]:
        return HIDDEN

    def _no_page(self, name: str) -> str:
        if name in HIDDEN:
            return notice(f"The page {PAGES[name][0]} is not part of a recording.", "A live pool shows it.")
        return super()._no_page(name)

    def _make(self, name: str) -> Page:
        return super()._make(name) if name in SAID else UnsaidPage(PAGES[name][0])

    def _badge(self, snapshot: Snapshot, now: float) -> tuple[str, str, str]:
        if self._moment is None:
            return "Recording", "A recorded pool", "warn"
        clock = format_clock(self._moment)
        return f"Recorded, {clock}", f"Pool {snapshot.status.pool if snapshot.status else ''}", "warn"

    def _open(self) -> None:
        """Read the run of the address."""
        runs: SharedRuns = pn.state.as_cached("djinn-lab-recordings", SharedRuns)
        self._named = self.board.route.get("run")
        named = self._named
        self.bar.say("Reading the recording.")
        self.board.background.run(
            "recording", lambda: runs.read(self._path, named), self._opened, self._failed
        )

    def _opened(self, found: tuple[Recording, RecordedRun]) -> None:
        self._run = found[1]
        self.bar.open(*found)
        self._show()

    def _failed(self, error: DjinnError) -> None:
        self.bar.say(error.message, error.advice, "bad")

    def _show(self) -> None:
        """Show the moment of the address, once it is known."""
        if self._run is not None and self.board.route.get("run") != self._named:
            self._run = self._moment = self._asked = None
            self._open()
        wanted = self._wanted()
        if self._run is not None and wanted is not None and (self._run.pool, wanted) != self._asked:
            self._asked = self._run.pool, wanted
            self._read(self._run, wanted)
        if self._moment is None:
            self.content.objects = list(self.above)
        else:
            super()._show()

    def _wanted(self) -> float | None:
        """Return the moment of the address; the end of the recording where it has none."""
        if self._run is None:
            return None
        try:
            at_s = float(self.board.route.get("at", "nan"))
        except ValueError:
            at_s = math.nan
        return self._run.within(at_s) if math.isfinite(at_s) else self._run.ends_at

    def _read(self, run: RecordedRun, at_s: float) -> None:
        self.board.background.run(
            "moment", lambda: hub_at(run, at_s), lambda found: self._arrived(at_s, *found), self._failed
        )

    def _arrived(self, at_s: float, hub: Hub, problem: str) -> None:
        """Show a moment: pages keep nothing of another one."""
        self.board = self.board._replace(hub=hub)
        self.pages = {}
        self._moment = at_s
        self.bar.show(at_s, problem)
        self._show()

    def _move(self, at_s: float) -> None:
        self.board.route.update(at=repr(at_s))

    def _choose(self, pool: str) -> None:
        """Show the end of another run."""
        self.board.route.update(run=pool, at=None)


def hub_at(run: RecordedRun, at_s: float) -> tuple[Hub, str]:
    """Return a hub that knows a recorded pool at a moment, and what cannot be read of it, empty for
    nothing."""
    pool = RecordedPool(run, at_s)
    hub = Hub(lambda: pool)
    hub.want_queue()
    for one in pool.used:
        hub.recall_memory(run.pool, one.at_s, one.used_bytes)
    hub.poll()
    return hub, pool.problem


def build_recorded_page(path: Path) -> pn.Template:
    """Build the page of one browser session that shows a recording."""
    return build_page(lambda gate, login: RecordedShell(gate, login, path))
