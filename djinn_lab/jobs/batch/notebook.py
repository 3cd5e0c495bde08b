"""One notebook as the core knows it, and its forecast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from djinn_lab.jobs.batch.restarts import RestartRules
from djinn_lab.jobs.batch.states import OVER, NotebookState
from djinn_lab.jobs.conditions import DependencyResults, DependencyState
from djinn_lab.jobs.resources import RUNS_MAX, Comparisons, ResourceForecast, ResourceUse, from_runs
from djinn_lab.jobs.states import RANKS


class Stopping(msgspec.Struct, frozen=True):
    """Why its runner was asked to stop. ``cancelled``: by a person, else by its time limit."""

    cancelled: bool
    message: str


class BatchNotebook(msgspec.Struct, frozen=True):
    """A submitted notebook. ``number``: order of arrival. ``priority``: one of
    :class:`djinn_lab.jobs.Priority`. ``waits_for``: open conditions of its dependencies (see
    :mod:`djinn_lab.jobs.conditions`), ``dependency_results``: results of the others, ``after_timeout_s``: how
    long it waits for them. ``checkpoints``: announced in this order, in any attempt. ``account``: the user's
    leaf of the share tree. ``timeout_s``: of run time, for each attempt. ``deadline_s``: when it should be
    done; handed to its cells, kills nothing. ``failures``: in a row. ``cell``: of ``cells`` code cells, the
    one that runs, ran last or failed (0: none yet). Times in seconds since the epoch."""

    job: str
    number: int
    user: str
    name: str
    submitted_at_s: float
    priority: str = "NORMAL"
    waits_for: tuple[str, ...] = ()
    restart: RestartRules = RestartRules()
    timeout_s: float | None = None
    deadline_s: float | None = None
    state: NotebookState = NotebookState.QUEUED
    reason: str = ""
    attempts: int = 0
    failures: int = 0
    started_at_s: float | None = None
    finished_at_s: float | None = None
    retry_at_s: float | None = None
    cell: int = 0
    cells: int = 0
    stopping: Stopping | None = None
    account: str = ""
    dependency_results: DependencyResults = DependencyResults()
    after_timeout_s: float | None = None
    checkpoints: tuple[str, ...] = ()
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """Given parameters."""
    content: str = ""
    """Equal for notebooks with the same code and parameters."""
    predicted: ResourceForecast | None = None
    """Its predicted use when it arrived; None where no equal one ran before."""
    use: ResourceUse | None = None
    """Use of its last attempt."""
    target: str | None = None
    """Where its cells run unless they say otherwise."""
    tolerates: tuple[str, ...] = ()
    """Taints of devices on which its cells run nevertheless."""

    @property
    def waiting(self) -> DependencyState:
        """State of its dependencies."""
        return DependencyState(self.waits_for, self.dependency_results)

    @property
    def gives_up_at_s(self) -> float | None:
        """Return when its wait for its dependencies reaches its limit."""
        waits = self.state is NotebookState.QUEUED and self.waits_for
        return self.submitted_at_s + self.after_timeout_s if waits and self.after_timeout_s else None

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def rank(self) -> int:
        """0 is CRITICAL."""
        return RANKS[self.priority]

    @property
    def ends_at_s(self) -> float | None:
        """Return when its time limit ends this attempt."""
        if self.timeout_s is None or self.started_at_s is None or self.state is not NotebookState.RUNNING:
            return None
        return self.started_at_s + self.timeout_s


class NotebookForecast(msgspec.Struct, frozen=True):
    """``earlier``: the run that needed most memory."""

    predicted: ResourceForecast
    earlier: str


def forecast_notebook(notebooks: Iterable[BatchNotebook], content: str) -> NotebookForecast | None:
    """Predict a notebook's use from earlier runs with the same code and parameters; None where there are
    none. Seconds are those of runs that went well, if there are any: a failed one did not take all of its
    own; its memory counts."""
    known, compared = [], Comparisons()
    for one in notebooks:
        if one.use is None:
            continue
        if one.content == content and content:
            known.append(one)
        if one.predicted is not None and one.state is NotebookState.DONE:
            compared.add(one.predicted, one.use)
    if not known:
        return None
    known = known[-RUNS_MAX:]
    uses = [one.use for one in known if one.use is not None]
    found = from_runs(uses, compared.error)
    well = [one.use for one in known if one.use is not None and one.state is NotebookState.DONE]
    if well:
        found = msgspec.structs.replace(found, device_s=from_runs(well, None).device_s)
    fullest = max(known, key=lambda one: 0 if one.use is None else one.use.peak_bytes)
    return NotebookForecast(found, fullest.job)
