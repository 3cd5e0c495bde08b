"""A scheduler that learns from its runs which features to use."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Self

import msgspec

from djinn_lab.config.store import write_atomically
from djinn_lab.errors import OptionError, UserError
from djinn_lab.scheduler.environment import FixedMode
from djinn_lab.scheduler.features import FEATURES, checked_switch
from djinn_lab.scheduler.modes import MODE_FEATURES, AdaptiveScheduler
from djinn_lab.scheduler.progress import (
    Progress,
    RunOutcome,
    SavedProgress,
    Thresholds,
    next_feature,
    pinned,
    progressed,
    read_progress,
)
from djinn_lab.units import listed


class ProgressiveScheduler(AdaptiveScheduler, remembers=True):
    """A scheduler that begins with the features of a mode, and tries others one at a time.

    The next feature is tried after ``enable_after_success`` successes in a row. When ``enable_on_pressure``
    of a device's memory is in use, or a run was out of memory, the next one that saves memory is tried at
    once.
    What makes runs worse is switched off (:mod:`djinn_lab.scheduler.progress`).

    ``settings``: as for :class:`AdaptiveScheduler`. :func:`djinn_lab.execute_model` records its runs. Raises
    OptionError for an unknown mode or a threshold that is out of range.
    """

    def __init__(
        self,
        start_mode: FixedMode = "basic",
        enable_after_success: int = 3,
        enable_on_pressure: float = 0.85,
        **settings: Any,
    ) -> None:
        if start_mode not in MODE_FEATURES:
            raise OptionError(
                f"a progressive scheduler cannot start in mode {start_mode!r}.",
                f"Use one of {', '.join(MODE_FEATURES)}.",
            )
        super().__init__(start_mode, **settings)
        try:
            self.thresholds = Thresholds(enable_after_success, enable_on_pressure)
        except ValueError as error:
            raise OptionError(f"{error}.") from None
        self._use(Progress(on=self.features))

    @property
    def progress(self) -> Progress:
        """Return what is on, on trial and paused, and all recent decisions."""
        return self._progress

    def _use(self, progress: Progress) -> None:
        self._progress = progress
        self._switched = {name: name in progress.on for name in FEATURES}
        self._settle()

    def enable_feature(self, name: str, on: bool = True) -> None:
        """Switch a feature for good: no outcome changes it from now on. Raises OptionError, as
        :func:`~djinn_lab.scheduler.features.checked_switch`."""
        self._use(pinned(self._progress, *checked_switch(name, on)))

    def record(self, outcome: RunOutcome) -> tuple[str, ...]:
        """Note how a run ended, and return a sentence for each feature that this switched, or that stays."""
        before = self._progress
        self._use(progressed(before, self.thresholds, outcome))
        known = {id(decision) for decision in before.decisions}
        return tuple(one.sentence() for one in self._progress.decisions if id(one) not in known)

    def explain(self) -> tuple[str, ...]:
        """Return what is on and why, as sentences; the latest decisions last."""
        now = self._progress
        left, following = self.thresholds.enable_after_success - now.successes, next_feature(now)
        if now.trial is not None:
            trial = f"{now.trial} is on trial, for {left} more"
        elif following is not None:
            trial = f"{following} is tried after {max(1, left)} more"
        else:
            trial = "no other feature is left to try now"
        paused = [name for name, pause in now.pauses.items() if now.now_s < pause.until_s]
        return (
            f"Features on: {listed(now.on) or 'none'}.",
            f"After {now.successes} successes in a row, {trial}.",
            f"Paused after they made runs worse: {listed(paused) or 'none'}.",
            *(decision.sentence() for decision in now.decisions),
        )

    def save(self, path: str | PathLike[str]) -> Path:
        """Write thresholds and state as JSON, and return the file's path; the previous file stays as
        ``.bak``. Raises UserError when it cannot be written."""
        place = Path(path)
        text = msgspec.json.encode(SavedProgress(1, self.thresholds, self._progress)).decode()
        try:
            write_atomically(place, text)
        except OSError as error:
            raise UserError(f"{place} cannot be written: {error}.", "Choose another file.") from None
        return place

    @classmethod
    def load(cls, path: str | PathLike[str], **settings: Any) -> Self:
        """Return a scheduler that continues from a saved state. ``settings``: as for
        :class:`AdaptiveScheduler`. Raises UserError for a file that is missing or damaged."""
        place = Path(path)
        try:
            text = place.read_bytes()
        except OSError as error:
            raise UserError(f"{place} cannot be read: {error}.", "Choose a file that save() wrote.") from None
        saved = read_progress(text, str(place))
        limits = saved.thresholds
        made = cls("basic", limits.enable_after_success, limits.enable_on_pressure, **settings)
        made._use(saved.progress)
        return made
