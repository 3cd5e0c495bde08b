"""What a decision says: plain values. Nothing has happened yet."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.decision.policy import Cause
from djinn_lab.jobs.fairness import Amounts
from djinn_lab.jobs.request import Where, members_in


class Start(msgspec.Struct, frozen=True):
    """``scores``: of the chosen node, its terms. ``ends_s``: expected, None when the run time is unknown.
    ``charge`` covers it until ``charged_until_s``. ``passed``: it starts before a job that was ahead of it
    and could not. ``pinned``: others moved aside."""

    job: str
    where: Where
    ends_s: float | None
    charge: Amounts
    charged_until_s: float
    scores: dict[str, float] = {}
    passed: bool = False
    pinned: bool = False

    @property
    def members(self) -> int:
        return members_in(self.where)


class Preemption(msgspec.Struct, frozen=True):
    """``victims`` move aside for ``by``, which gets ``where`` and nobody else does. ``cost_s``: of parking
    all of them. ``causes``: by victim."""

    by: str
    victims: tuple[str, ...]
    where: Where
    causes: tuple[Cause, ...]
    cost_s: float


class Reserved(msgspec.Struct, frozen=True):
    """The room that a job which is ahead will find then; ``where`` is empty where any nodes will do."""

    job: str
    start_s: float
    where: Where = ()


class TopUp(msgspec.Struct, frozen=True):
    """A running job has used up what it was charged; this is what it is charged from now on."""

    job: str
    charge: Amounts
    charged_until_s: float


class Plan(msgspec.Struct, frozen=True):
    """``wake_at_s``: when the next decision could be another although nothing happens, None when never.
    ``promised``: the reservations are to be kept from now on. ``given_up``: jobs whose places are kept no
    longer, since their accounts may not have them any more."""

    now_s: float
    starts: tuple[Start, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    reservations: tuple[Reserved, ...] = ()
    top_ups: tuple[TopUp, ...] = ()
    wake_at_s: float | None = None
    promised: bool = False
    given_up: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Is there anything to do?"""
        return bool(self.starts or self.preemptions or self.top_ups or self.given_up)
