"""For whom a job moves aside, in words."""

from __future__ import annotations

from collections.abc import Mapping

from djinn_lab.jobs.decision import Calendar, Cause
from djinn_lab.jobs.fairness import ShareTree
from djinn_lab.jobs.job import Job
from djinn_lab.jobs.kept_back import kept_for


def for_whom(by: Job, victim: Job, cause: Cause, shares: ShareTree, calendar: Mapping[str, Calendar]) -> str:
    """``for bob's job 1fdb02aa (NORMAL)``, and by what right where that is not in the policy."""
    right = None
    if cause == "guarantee":
        right = _guarantee(by, victim, shares)
    elif cause == "reservation":
        right = _reservation(by, victim, calendar)
    whom = f"for {by.user}'s job {by.job[:8]} ({by.priority})"
    return whom if right is None else f"{whom}: {right}"


def _guarantee(by: Job, victim: Job, shares: ShareTree) -> str | None:
    met = shares.guarantee_met(by.account, victim.account)
    if met is None:
        return None
    return f"{met[0]} is within its {met[1]:g} guaranteed device{'' if met[1] == 1 else 's'}"


def _reservation(by: Job, victim: Job, calendar: Mapping[str, Calendar]) -> str | None:
    for _, entry in sorted(calendar.items()):
        there = sorted(entry.nodes.intersection(victim.holds))
        if there and entry.admits(by.account) and not entry.admits(victim.account):
            return kept_for(entry, tuple(there))
    return None
