"""Admin: what operators and admins do on the command line, in sections."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import panel as pn

from djinn_lab.dashboard.admin.accounts import AccountsSection
from djinn_lab.dashboard.admin.audit import AuditSection
from djinn_lab.dashboard.admin.devices import DevicesSection
from djinn_lab.dashboard.admin.jobs import JobsSection
from djinn_lab.dashboard.admin.policy import PolicySection
from djinn_lab.dashboard.admin.pool import PoolSection
from djinn_lab.dashboard.admin.reservations import ReservationsSection
from djinn_lab.dashboard.admin.section import Section, stack
from djinn_lab.dashboard.admin.sessions import SessionsSection
from djinn_lab.dashboard.admin.tokens import TokensSection
from djinn_lab.dashboard.admin.users import UsersSection
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.permissions import refusal, role_of
from djinn_lab.dashboard.widgets.components import SectionTabs
from djinn_lab.dashboard.widgets.panes import html_pane, notice, show_html, show_known
from djinn_lab.pool.authentication import Role


class SectionEntry(NamedTuple):
    """``needs``: the role with which the section can be used."""

    label: str
    needs: Role
    make: Callable[[Board], Section]


SECTIONS: dict[str, SectionEntry] = {
    "users": SectionEntry("Users", Role.ADMIN, UsersSection),
    "tokens": SectionEntry("Tokens", Role.VIEWER, TokensSection),
    "accounts": SectionEntry("Accounts", Role.ADMIN, AccountsSection),
    "devices": SectionEntry("Devices", Role.OPERATOR, DevicesSection),
    "jobs": SectionEntry("Jobs", Role.OPERATOR, JobsSection),
    "sessions": SectionEntry("Sessions", Role.OPERATOR, SessionsSection),
    "reservations": SectionEntry("Reservations", Role.OPERATOR, ReservationsSection),
    "policy": SectionEntry("Policy", Role.ADMIN, PolicySection),
    "audit": SectionEntry("Audit", Role.ADMIN, AuditSection),
    "pool": SectionEntry("Pool", Role.ADMIN, PoolSection),
}


class AdminPage:
    """State: the address holds the section. Visitors see the sections that their role may use."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sections: dict[str, Section] = {}
        self.tabs = SectionTabs(label="Sections of the page Admin", sizing_mode="stretch_width")
        self.refused = html_pane(margin=(0, 0, 12, 0))
        self.body = pn.Column(sizing_mode="stretch_width", margin=(14, 0, 0, 0))
        self._live = stack(self.refused, self.tabs, self.body, visible=False)
        self._missing = html_pane()
        self.view = stack(self._missing, self._live)
        self.tabs.param.watch(lambda event: self._tab_chosen(), "active")

    def enter(self) -> None:
        """Called when the page is shown, or its address has changed."""

    def update(self, snapshot: Snapshot) -> None:
        """Bring the shown section up to the snapshot."""
        if not show_known(self._live, self._missing, snapshot, snapshot.status):
            return
        allowed = [name for name, entry in SECTIONS.items() if not self._refusal(snapshot, entry)]
        wanted = self._board.route.get("section")
        show_html(self.refused, self._notice(snapshot, wanted, allowed))
        self.tabs.visible = len(allowed) > 1
        sections = [[name, SECTIONS[name].label] for name in allowed]
        if sections != self.tabs.sections:
            self.tabs.sections = sections
        shown = wanted if wanted in SECTIONS else next(iter(allowed), "")
        if shown not in allowed:
            shown = ""
        if self.tabs.active != shown:
            self.tabs.active = shown
        self._show(shown, snapshot)

    def section(self, name: str) -> Section:
        """Return a section, built when it is first shown."""
        if name not in self._sections:
            self._sections[name] = SECTIONS[name].make(self._board)
        return self._sections[name]

    def _show(self, name: str, snapshot: Snapshot) -> None:
        views = [self.section(name).view] if name else []
        if list(self.body.objects) != views:
            self.body.objects = views
        if name:
            self.section(name).update(snapshot)

    def _refusal(self, snapshot: Snapshot, entry: SectionEntry) -> str:
        return refusal(self._board, snapshot, entry.needs, f"the section {entry.label}")

    def _notice(self, snapshot: Snapshot, wanted: str, allowed: list[str]) -> str:
        """Say what the visitor may not do here, and who can allow it; nothing for an admin."""
        if wanted in SECTIONS and wanted not in allowed:
            return notice(self._refusal(snapshot, SECTIONS[wanted]))
        role = role_of(snapshot)
        if role is None or role is Role.ADMIN:
            return notice(self._refusal(snapshot, SECTIONS["users"])) if not allowed else ""
        what = "managing the pool" if role < Role.OPERATOR else "managing users, accounts and the policy"
        needed = Role.OPERATOR if role < Role.OPERATOR else Role.ADMIN
        return notice(refusal(self._board, snapshot, needed, what))

    def _tab_chosen(self) -> None:
        if self.tabs.active:
            self._board.route.update(section=self.tabs.active)
