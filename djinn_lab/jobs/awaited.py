"""Events about what jobs come after, beside the ends of other jobs: checkpoints, data, batch notebooks."""

from __future__ import annotations

import msgspec


class Elsewhere(msgspec.Struct, frozen=True):
    """A batch notebook that a cell may come after; the queue does not run it. ``waits_for``: cells that it
    cannot end before."""

    job: str
    name: str
    state: str
    over: bool = False
    checkpoints: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


class CheckpointAnnounced(msgspec.Struct, frozen=True, tag=True):
    """The job, which goes on, has come to the checkpoint ``name``."""

    at_s: float
    job: str
    name: str


class DataPublished(msgspec.Struct, frozen=True, tag=True):
    """``account``: the leaf of the share tree of who published data called ``name``."""

    at_s: float
    account: str
    name: str


class ElsewhereChanged(msgspec.Struct, frozen=True, tag=True):
    """Of a batch notebook that cells may come after: its state, or its checkpoints."""

    at_s: float
    elsewhere: Elsewhere
