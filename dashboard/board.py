"""What the pages of one browser session share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import panel as pn

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.gate import Gate
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.widgets.theme import Look

FIRST_WAIT_S = 0.5
"""How long the first page of a server waits for the first answer of the pool."""


class Board(NamedTuple):
    """What pages share. ``own``: the visitor is the user who runs the dashboard, and whose files the pages
    may write. ``logged_in``: the visitor came by a login, and not because none was needed.
    ``keeper``: what the user who runs the dashboard knows of the pool."""

    hub: Hub
    route: Route
    background: Background
    look: Look
    own: bool = True
    logged_in: bool = True
    keeper: Callable[[], Snapshot] = Snapshot


class Page(Protocol):
    """A page builds its view once; ``update`` is called a few times a second while it is shown."""

    @property
    def view(self) -> pn.viewable.Viewable: ...

    def update(self, snapshot: Snapshot) -> None: ...

    def enter(self) -> None: ...


def shared_gate() -> Gate:
    """Return the gate of this process."""
    gate: Gate = pn.state.as_cached("djinn-lab-gate", lambda: Gate(shared_hub()))
    return gate


def shared_hub() -> Hub:
    """Return the hub of this process, started on first use."""
    hub: Hub = pn.state.as_cached("djinn-lab-hub", lambda: Hub(PoolClient.find).start())
    hub.wait_for_first(FIRST_WAIT_S)
    return hub
