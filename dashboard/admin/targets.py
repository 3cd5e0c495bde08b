"""Targets of an account as a form reads them, and what a change of them does, in words."""

from __future__ import annotations

from typing import NamedTuple

from djinn_lab.dashboard.widgets.forms import Form
from djinn_lab.jobs import RANKS
from djinn_lab.jobs.fairness import AccountView, Limits

ANY_PRIORITY = "any"
FIELDS = ("weight", "devices_max", "devices_soft", "devices_guaranteed", "device_s_max", "queued_max")
LABELS = {
    "weight": "Weight",
    "devices_max": "Devices at most",
    "devices_soft": "Devices while others want them",
    "devices_guaranteed": "Guaranteed devices",
    "device_s_max": "Device-seconds a week",
    "queued_max": "Pending cells at most",
}
BEST = "Best priority"


class Targets(NamedTuple):
    """Weight and limits of an account."""

    weight: float
    limits: Limits


NEW = Targets(1.0, Limits())
"""Of an account that nothing was set for."""


def targets_of(account: AccountView | None) -> Targets:
    return NEW if account is None else Targets(account.weight, account.limits)


def typed_text(targets: Targets) -> dict[str, str]:
    """Return what stands in the form for an account's targets."""
    texts = {name: _text(getattr(targets.limits, name)) for name in FIELDS[1:]}
    return {"weight": _text(targets.weight), **texts, "rank_min": _best(targets.limits.rank_min)}


def read_targets(form: Form) -> Targets:
    """Read the form; an empty field is no limit. Raises OptionError, with the note beside the field."""
    weight = form.number("weight")
    if weight == 0:
        raise form.refused("weight", "A weight must be above 0.")
    most, soft = form.number("devices_max"), form.number("devices_soft")
    guaranteed = form.number("devices_guaranteed")
    for limit, kind in ((most, "limit"), (soft, "soft limit")):
        if guaranteed is not None and limit is not None and guaranteed > limit:
            words = f"The guarantee of {guaranteed:g} devices is above the {kind} of {limit:g}."
            raise form.refused("devices_guaranteed", words)
    limits = Limits(
        devices_max=most,
        devices_soft=soft,
        device_s_max=form.number("device_s_max"),
        queued_max=form.whole("queued_max"),
        rank_min=0 if form.value("rank_min") == ANY_PRIORITY else RANKS[form.value("rank_min")],
        devices_guaranteed=guaranteed,
    )
    return Targets(NEW.weight if weight is None else weight, limits)


def changes_between(before: Targets, after: Targets) -> list[str]:
    """List what differs: ``devices at most from none to 3``."""
    old, new = typed_text(before), typed_text(after)
    labels = {**LABELS, "rank_min": BEST}
    return [
        f"{labels[name].lower()} from {old[name] or 'none'} to {new[name] or 'none'}"
        for name in labels
        if old[name] != new[name]
    ]


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"


def _best(rank: int) -> str:
    return list(RANKS)[rank] if rank else ANY_PRIORITY
