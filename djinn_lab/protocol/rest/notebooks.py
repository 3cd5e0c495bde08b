"""``/v1/notebooks``: batch notebooks."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_lab.jobs.resources import ResourceForecast, ResourceUse
from djinn_lab.protocol.rest.jobs import FINISHED_STATES


class NotebookView(msgspec.Struct, frozen=True):
    """Show a batch notebook. ``reason``: why it is where it is, in a sentence with numbers. ``position``:
    among those that wait for a slot. ``cell`` of ``cells``: runs, ran last or failed. ``attempts_max`` None:
    without end. ``after``: its dependencies. ``checkpoints``: that it announced. ``parameters``: that it was
    given, for its owner. ``predicted``: what it was predicted to take; ``use``: what its last attempt took.
    ``target``, ``tolerates``: of cells that do not say."""

    job: str
    user: str = ""
    name: str = ""
    priority: str = ""
    state: str = ""
    reason: str = ""
    position: int | None = None
    cell: int = 0
    cells: int = 0
    attempts: int = 0
    attempts_max: int | None = None
    restart: str = ""
    after: tuple[str, ...] = ()
    timeout_s: float | None = None
    deadline_at: float | None = None
    submitted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    retry_at: float | None = None
    checkpoints: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}
    predicted: ResourceForecast | None = None
    use: ResourceUse | None = None
    target: str | None = None
    tolerates: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        return self.state in FINISHED_STATES
