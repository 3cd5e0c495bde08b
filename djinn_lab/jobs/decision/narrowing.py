"""Whom it is still worth to look at once nothing is free and no more preemptors are tried: those who are owed
guaranteed devices. Others would change nothing, so the plan is the same, and guarantees cost little."""

from __future__ import annotations

from djinn_lab.jobs.decision.guarantees import Standing
from djinn_lab.jobs.decision.trial import Trial
from djinn_lab.jobs.decision.waiting import WaitingIndex


class Narrowing:
    def __init__(self, trial: Trial, owing: Standing, index: WaitingIndex) -> None:
        self._trial, self._owing, self._index = trial, owing, index
        self._raised: bool | None = None
        self._due: set[str] = set()
        self._counted_at = -1

    def due(self) -> set[str] | None:
        """Accounts whose candidates can be had others moved aside for by a guarantee; None: look at all."""
        if not self._others_change_nothing():
            return None
        if self._counted_at != len(self._trial.preemptions):
            self._counted_at = len(self._trial.preemptions)
            queued = self._trial.cluster.queued
            self._due = {account for account, waits in queued.items() if waits and self._owing.short(account)}
        return self._due

    def _others_change_nothing(self) -> bool:
        """They neither are promised room, which those that follow would have to leave them, nor does a limit
        of theirs end by itself, which the decision would wake up for."""
        trial = self._trial
        if trial.shares.limited_by_use:
            return False
        match trial.policy.passing:
            case "always":
                return True
            case "starving":
                return bool(trial.blocked) or not self._somebody_raised()
            case "easy":
                return bool(trial.blocked)
            case _:
                return False

    def _somebody_raised(self) -> bool:
        if self._raised is None:
            self._raised = self._index.somebody_raised(self._trial.cluster.waiting, self._trial.now_s)
        return self._raised
