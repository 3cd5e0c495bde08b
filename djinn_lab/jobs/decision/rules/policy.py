"""Policies: order, backfilling, preemption. Each is data, and :mod:`djinn_lab.jobs.decision.decide` obeys
it.

Sources: EASY: Lifka, The ANL/IBM SP scheduling system (JSSPP 1995); conservative: Mu'alem and Feitelson,
IEEE TPDS 12(6), 2001. SRTF: Schrage 1968. Tiresias: Gu et al., NSDI 2019 (discretised two-dimensional
attained service). QSSF: Hu et al., Characterization and prediction of deep learning workloads (Helios), SC
2021. Fair Tree: Cox and Morrison, Slurm 14.11. Minimum run time below the lowest common ancestor: KAI
scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from djinn_lab.jobs.placement.scoring import SCORINGS

Within = Literal["arrival", "remaining", "work", "service", "attained"]
"""The order among equals. ``arrival``: by number. ``remaining``: predicted seconds still to run. ``work``:
those times the square root of devices, between the shortest and the smallest (it measures best, on traces
it was and was not chosen on). ``service``: those times devices. ``attained``: the queue of attained
device-seconds, then arrival."""

Backfill = Literal["never", "always", "starving", "easy", "conservative"]
"""Whether a job may start before one that is ahead of it and does not fit. ``never``; ``always``;
``starving``: when it delays no job raised by age or a deadline (at most ``reservations``); ``easy``: none
of the first ``reservations``; ``conservative``: no job at all."""

PROMISING_BACKFILL: frozenset[Backfill] = frozenset({"starving", "easy", "conservative"})
"""With these, a job that is ahead may be promised a start, and no other job may delay it."""

Cause = Literal["rank", "fairness", "shorter", "attained", "decode", "guarantee", "reservation"]
"""Why one job may preempt another. ``rank``: better priority. ``fairness``: its account would still be behind
the other's. ``shorter``: it is much shorter. ``attained``: it has attained less service. ``decode``: it is a
decode step, and the other a larger prefill, whatever their accounts have had. ``guarantee``: with it its
account holds no more than it is guaranteed, which counts under every policy that has any of the others.
``reservation``: its node is reserved for it, not for the other, under any policy."""


class QueuePolicy(msgspec.Struct, frozen=True):
    """How the queue orders, backfills and preempts jobs. Order: ``by_rank``, then ``by_fairness``, then
    ``within``.

    ``passing_stretch``: where shorter jobs go first, one passes another only if it came at most so many times
    the difference of their work later; None: always. Jobs of about the same work so go in the order of their
    arrival, and none is passed for ever.

    ``age_step_s``: after each such time, plus ``age_stretch`` times its total run time, a job is treated
    as one rank better, at most ``age_ranks_max`` times. No job reaches rank 0 by waiting. A deadline that
    comes close counts as one such step. None: never. ``unknown_s``: the run time assumed of a job without
    an estimate.

    A preemption for shortness needs ``remaining x shorter_factor + park_factor x park_s`` below the
    victim's remaining time. One for fairness needs the account to stay behind, after both charges, by what
    the whole pool computes in ``fair_margin_s + park_factor x park_s``, per weight. ``min_runtime_s``: no
    job is preempted before, where accounts set nothing else, but a prefill for a decode step once it has run
    for as long as that step takes, 10 ms at the least. ``preemptions_max``: of one job (rank 0 may preempt
    nevertheless). ``preempt_depth``: how many classes of waiting jobs are tried as preemptors in a decision.
    ``victims_max``: of one preemption. ``home_patience``: wait for the home device while that takes less
    than so many times what a move would, or less than ``home_patience_s_min``, since a move takes links and
    host memory from other sessions, too; both 0: go to any free device. ``energy_price_per_kwh``: in the
    currency of devices' prices, added to those by the watts that operators give."""

    name: str
    version: int = 1
    by_rank: bool = True
    by_fairness: bool = False
    within: Within = "arrival"
    backfill: Backfill = "never"
    reservations: int = 1
    preempts: tuple[Cause, ...] = ()
    shorter_factor: float = 2.0
    park_factor: float = 4.0
    fair_margin_s: float = 30.0
    min_runtime_s: float = 0.0
    preemptions_max: int = 50
    preempt_depth: int = 2
    victims_max: int = 64
    passing_stretch: float | None = None
    age_step_s: float | None = None
    age_stretch: float = 0.0
    age_ranks_max: int = 1
    deadline_slack_s: float = 60.0
    attained_limits_s: tuple[float, ...] = ()
    unknown_s: float = 300.0
    home_patience: float = 4.0
    home_patience_s_min: float = 0.5
    scoring: str = "default"
    energy_price_per_kwh: float = 0.0

    @property
    def shortest_first(self) -> bool:
        """Return whether the shortest of alike jobs comes first, so that no later one fits where it does
        not."""
        return self.within in ("remaining", "work", "service")

    @property
    def reserves_move_targets(self) -> bool:
        """Return whether a device is reserved for a session that is moving to it: where starts are promised,
        or nothing is backfilled. Else other jobs start there meanwhile, since its memory may not fit after
        all."""
        return self.backfill in ("never", "easy", "conservative")

    def __post_init__(self) -> None:
        if self.scoring not in SCORINGS:
            raise ValueError(f"scoring {self.scoring!r} is unknown; use one of {', '.join(SCORINGS)}")
        if self.shorter_factor < 1:
            raise ValueError(
                f"shorter_factor {self.shorter_factor} is below 1: jobs would trade places for ever"
            )
        if self.passing_stretch is not None and not 0 < self.passing_stretch < math.inf:
            raise ValueError(f"passing_stretch {self.passing_stretch} is not above 0; None: no limit")
        if self.reservations < 1 and self.backfill in ("easy", "starving"):
            raise ValueError(f"{self.backfill} needs at least one reservation; backfill='always' needs none")
        if self.age_step_s is not None and not self.age_step_s > 0:
            raise ValueError(f"age_step_s {self.age_step_s} is not above 0; None is without ageing")
        if not 0 <= self.energy_price_per_kwh < math.inf:
            raise ValueError(f"energy_price_per_kwh {self.energy_price_per_kwh} is not a price (0 or more)")


DEFAULT = QueuePolicy(
    "default",
    by_fairness=True,
    within="work",
    backfill="starving",
    reservations=2,
    preempts=("rank", "fairness", "shorter", "decode"),
    shorter_factor=1.0,
    min_runtime_s=0.1,
    preemptions_max=500,
    passing_stretch=20.0,
    age_step_s=600.0,
    age_stretch=50.0,
)

POLICIES: Mapping[str, QueuePolicy] = {
    policy.name: policy
    for policy in (
        QueuePolicy("fifo"),
        QueuePolicy("fifo_passing", backfill="always"),
        QueuePolicy("sjf", within="remaining"),
        QueuePolicy(
            "srtf",
            within="remaining",
            backfill="always",
            preempts=("shorter",),
            shorter_factor=1.0,
            preemptions_max=1_000_000,
        ),
        QueuePolicy(
            "tiresias",
            within="attained",
            backfill="always",
            preempts=("attained",),
            attained_limits_s=(3600.0,),
            preemptions_max=1_000_000,
        ),
        QueuePolicy("qssf", within="service"),
        QueuePolicy("easy", backfill="easy"),
        QueuePolicy("conservative", backfill="conservative"),
        QueuePolicy("fair_share_only", by_rank=False, by_fairness=True, backfill="always"),
        DEFAULT,
    )
}

_FORMER_NAMES = {"ours": "default"}
"""Journals of pools from before still have them."""


def policy_named(name: str) -> QueuePolicy | None:
    """Return the policy of that name, which a journal may have from an older version; None: there is none."""
    return POLICIES.get(_FORMER_NAMES.get(name, name))
