"""``/v1/notebooks``: batch notebooks."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_lab.jobs.batch import RestartRules
from djinn_lab.jobs.resources import ResourceForecast, ResourceUse
from djinn_lab.protocol.rest.jobs import FINISHED_STATES

NAME_CHARACTERS_MAX = 200


class NewNotebook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Submit a batch notebook. ``notebook``: the bytes of an .ipynb file. ``key``: a submission with the key
    of an earlier one of the same user is that one. ``folder``: where it runs, on the pool's machine; empty:
    in a place of its own. ``after``, ``after_count`` and ``after_timeout_s``: its dependencies, how many of
    them suffice, and how long it waits. ``parameters``: as in :mod:`djinn_lab.jobs.batch.parameters`.
    ``deadline_s``: from now; ``timeout_s``: of run time, each attempt. ``anyway``: also when it needed more
    memory before than any device has. ``target`` and ``tolerates``: of its cells, where they do not say
    otherwise. Raises ValueError for a name or key that is empty, too long or not printable."""

    notebook: msgspec.Raw
    name: str
    key: str
    folder: str = ""
    priority: str = "NORMAL"
    after: tuple[str, ...] = ()
    deadline_s: float | None = None
    timeout_s: float | None = None
    restart: RestartRules = RestartRules()
    after_count: int | None = None
    after_timeout_s: float | None = None
    parameters: dict[str, object] = msgspec.field(default_factory=dict)
    anyway: bool = False
    target: str | None = None
    tolerates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("key", self.key)):
            if not 1 <= len(text) <= NAME_CHARACTERS_MAX or not text.isprintable():
                raise ValueError(f"A {what} has 1 to {NAME_CHARACTERS_MAX} printable characters.")


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
