"""The outcome of a decision: plain values. Nothing has happened yet."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.decision.rules.policy import Cause
from djinn_lab.jobs.fairness import Amounts
from djinn_lab.jobs.request import Where, members_in


class Start(msgspec.Struct, frozen=True):
    """The start of a job. ``scores``: the terms of the chosen node's score. ``ends_s``: expected, None when
    the run time is unknown. ``charge`` covers the run until ``charged_until_s``. ``backfilled``: the job
    starts before one that was ahead of it and could not. ``on_reserved``: on capacity that was reserved for
    it."""

    job: str
    where: Where
    ends_s: float | None
    charge: Amounts
    charged_until_s: float
    scores: dict[str, float] = {}
    backfilled: bool = False
    on_reserved: bool = False

    @property
    def members(self) -> int:
        return members_in(self.where)


class Preemption(msgspec.Struct, frozen=True):
    """The preemption of some jobs for another. ``victims`` are preempted for ``by``, for which ``where`` is
    then reserved. ``cost_s``: of parking all of them. ``causes``: by victim."""

    by: str
    victims: tuple[str, ...]
    where: Where
    causes: tuple[Cause, ...]
    cost_s: float


class Interleaving(msgspec.Struct, frozen=True):
    """The start of a brief job between two ops of what runs on ``node``, its home. It holds no capacity.
    ``charge`` covers its expected run."""

    job: str
    node: str
    charge: Amounts


class StartReservation(msgspec.Struct, frozen=True):
    """The promised start of a job that is ahead and cannot start now; ``where`` is empty where any nodes
    will do."""

    job: str
    start_s: float
    where: Where = ()


class TopUp(msgspec.Struct, frozen=True):
    """The new charge of a running job that has used up its former one."""

    job: str
    charge: Amounts
    charged_until_s: float


class Plan(msgspec.Struct, frozen=True):
    """Everything that a decision does. ``wake_at_s``: when the next decision could differ although nothing
    happens, None when never. ``promised``: the reservations are to be kept from now on. ``released``: jobs
    whose reserved capacity is released, since their accounts' limits or reservations forbid it now."""

    now_s: float
    starts: tuple[Start, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    reservations: tuple[StartReservation, ...] = ()
    top_ups: tuple[TopUp, ...] = ()
    wake_at_s: float | None = None
    promised: bool = False
    released: tuple[str, ...] = ()
    interleaved: tuple[Interleaving, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.starts or self.preemptions or self.top_ups or self.released or self.interleaved)
