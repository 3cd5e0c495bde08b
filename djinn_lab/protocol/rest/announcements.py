"""``/v1/checkpoints`` and ``/v1/data``: checkpoints of jobs, and data published by name."""

from __future__ import annotations

import msgspec


class Announcement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Announce a checkpoint, or publish data. ``job``: the cell that does so, None outside of cells. The
    batch notebook is known by the token."""

    name: str
    job: str | None = None


class Announced(msgspec.Struct, frozen=True):
    """Confirm a checkpoint. ``jobs``: the cell and the batch notebook that announced it."""

    name: str
    jobs: tuple[str, ...]


class Published(msgspec.Struct, frozen=True):
    """Show published data. ``account``: the user's leaf account. ``job``: the cell or batch notebook that
    published it, empty for none. ``at``: the first time."""

    user: str
    account: str
    name: str
    job: str
    at: float
