"""What the pages of one browser session share."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import NamedTuple, Protocol

import panel as pn

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.gate import Gate
from djinn_lab.dashboard.hub import Hub, Snapshot
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.widgets.theme import Look
from djinn_lab.errors import PoolNotFound
from djinn_lab.protocol.recording_file import recording_path

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
    logged_in: bool = False
    keeper: Callable[[], Snapshot] = Snapshot


class Page(Protocol):
    """A page builds its view once; ``update`` is called a few times a second while it is shown."""

    @property
    def view(self) -> pn.viewable.Viewable: ...

    def update(self, snapshot: Snapshot) -> None: ...

    def enter(self) -> None: ...


def shared_gate() -> Gate:
    """Return the gate of this process."""
    gate: Gate = pn.state.as_cached("djinn-lab-gate", _make_gate)
    return gate


def _make_gate() -> Gate:
    return Gate(shared_hub(), always_closed=recording_path() is not None)


def shared_hub() -> Hub:
    """Return the hub of this process, started on first use. That of a recording asks nothing."""
    hub: Hub = pn.state.as_cached("djinn-lab-hub", _make_hub)
    if recording_path() is None:
        hub.wait_for_first(FIRST_WAIT_S)
    return hub


def _make_hub() -> Hub:
    gc.freeze()  # what was imported stays, so that full collections do not go through it (0.1 s each)
    return Hub(_find_none) if recording_path() is not None else Hub(PoolClient.find).start()


def _find_none() -> PoolClient:
    """Raise the error of what only a pool can answer."""
    raise PoolNotFound(
        "This dashboard shows a recording, which has no users.",
        "Open the address that djinn-lab dashboard printed when it started.",
    )
