"""The cost estimator of an installed package, as the live pool asks it: timed, checked and counted."""

from __future__ import annotations

import logging
from time import perf_counter
from traceback import format_exception_only
from typing import cast

from djinn_lab.config.fields import BUILT_IN_ESTIMATOR
from djinn_lab.plugins import Plugin, load_plugin
from djinn_lab.protocol.rest.costs import EstimatorView
from djinn_lab.srg.costs import Work
from djinn_lab.srg.program_costs import (
    MeasuredDevice,
    NotSeconds,
    ProgramCostEstimator,
    checked_seconds,
)
from djinn_lab.units import counted

ENTRY_POINTS = "djinn_lab.cost_estimators"
SECONDS_MIN = 1e-9
"""No program with an op is faster."""
REASON_CHARS_MAX = 200

log = logging.getLogger(__name__)


class EstimatorPlugin:
    """Asks an estimator on behalf of the pool. It runs on the event loop, so its time is measured."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._estimator = cast(ProgramCostEstimator, plugin.made)
        self._asked = self._predicted = self._refused = 0
        self._spent_s = 0.0
        self._last_refusal = ""

    @property
    def name(self) -> str:
        return self._plugin.name

    def seconds(self, work: Work, device: MeasuredDevice) -> float | None:
        """Return what the estimator predicts, in seconds; None where it does not know, and where its answer
        is refused. Raises nothing, whatever the estimator does."""
        self._asked += 1
        started_s = perf_counter()
        seconds = None
        try:
            answer: object = self._estimator.seconds(work, device)
            if answer is not None:
                seconds = _checked(answer, work.ops)
                self._predicted += 1
        except NotSeconds as error:
            self._refuse(f"it returned {error}")
        except BaseException as error:  # noqa: BLE001 - foreign code: reported, and never the pool's end
            self._refuse("it raised " + "".join(format_exception_only(error)), error)
        self._spent_s += perf_counter() - started_s
        return seconds

    def _refuse(self, reason: str, error: BaseException | None = None) -> None:
        """Count a refusal; the first one is logged, with the traceback of what was raised."""
        self._refused += 1
        self._last_refusal = _one_line(reason)[:REASON_CHARS_MAX]
        if self._refused == 1:
            log.warning(
                "The cost estimator %s of %s was refused: %s. The built-in cost model predicts in its place "
                "each time this happens; djinn-lab pool costs counts how often.",
                *(self._plugin.name, self._plugin.package, self._last_refusal),
                exc_info=error,
            )

    def view(self) -> EstimatorView:
        """Show how the estimator fares."""
        return EstimatorView(
            name=self._plugin.name,
            package=self._plugin.package,
            asked=self._asked,
            predicted=self._predicted,
            refused=self._refused,
            last_refusal=self._last_refusal,
            mean_s=self._spent_s / self._asked if self._asked else None,
        )


def _checked(answer: object, ops: int) -> float:
    """Return an answer in seconds. Raises NotSeconds, also for a time in which no op could run."""
    seconds = checked_seconds(answer)
    if ops and seconds < SECONDS_MIN:
        raise NotSeconds(f"{seconds:g} seconds for {counted(ops, 'op')}")
    return seconds


def _one_line(text: str) -> str:
    """Return the text without line breaks and control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def load_estimator(name: str) -> EstimatorPlugin | None:
    """Make the estimator that an installed package offers under this name; None for the built-in cost model.
    Raises OptionError for a name that is not offered, and for what is no estimator."""
    if name == BUILT_IN_ESTIMATOR:
        return None
    return EstimatorPlugin(load_plugin(ENTRY_POINTS, "cost estimator", name, ("seconds(work, device)",)))
