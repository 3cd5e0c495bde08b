"""``/v1/snapshot``: what a page shows of the pool, all of one moment."""

from __future__ import annotations

import msgspec

from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.sessions import MemoryView, SessionView
from djinn_lab.protocol.rest.status import PoolStatus


class PoolSnapshot(msgspec.Struct, frozen=True):
    """Show the pool at one moment, so that no part contradicts another. ``jobs``: the newest first."""

    status: PoolStatus
    sessions: tuple[SessionView, ...]
    jobs: tuple[JobView, ...]
    memory: MemoryView
