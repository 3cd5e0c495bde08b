"""Policies: who comes first, who may pass, who may preempt whom. Each is data; the machinery that obeys it is
:mod:`djinn_lab.jobs.decision.decide`.

Sources: EASY: Lifka, The ANL/IBM SP scheduling system (JSSPP 1995); conservative: Mu'alem and Feitelson, IEEE
TPDS 12(6), 2001. SRTF: Schrage 1968. Tiresias: Gu et al., NSDI 2019 (discretised two-dimensional attained
service). QSSF: Hu et al., Characterization and prediction of deep learning workloads (Helios), SC 2021.
Fair Tree: Cox and Morrison, Slurm 14.11. Minimum run time below the lowest common ancestor: KAI scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

Within = Literal["arrival", "remaining", "work", "service", "attained"]
"""The order among equals: number of arrival; predicted seconds still to run; those times the square root of
devices, between the shortest and the smallest (it measures best, on traces it was and was not chosen on);
those times devices; the queue of attained device-seconds that it is in, then arrival."""

Passing = Literal["never", "always", "starving", "easy", "conservative"]
"""May a job start before one that is ahead of it and does not fit? Never; always; when it delays none of
those that age or a deadline has raised (at most ``reservations``); none of the first ``reservations``;
nobody."""

PROMISING: frozenset[Passing] = frozenset({"starving", "easy", "conservative"})
"""With these, who is ahead may be promised room, and nobody may start in it."""

Cause = Literal["rank", "fairness", "shorter", "attained", "guarantee", "reservation"]
"""Why one job may preempt another: better priority; its account would still be behind the other's; it is much
shorter; it has had less service; its account holds no more than it is guaranteed with it, which counts under
every policy that has any of the others; its node is reserved for it, not for the other, under any policy."""


class QueuePolicy(msgspec.Struct, frozen=True):
    """Order: ``by_rank``, then ``by_fairness``, then ``within``.

    ``age_step_s``: after each such time, plus ``age_stretch`` times what it needs in all, a job is treated
    as one rank better, at most ``age_ranks_max`` times and never as rank 0, which nobody can wait himself
    into; a deadline that comes close counts as one such step. None: never. ``unknown_s``: what a job
    without an estimate is taken to need.

    A preemption for shortness needs ``remaining x shorter_factor + park_factor x park_s`` below what the
    victim still needs; one for fairness that the account stays behind, after both charges, by what the
    whole pool computes in ``fair_margin_s + park_factor x park_s``, per weight. ``min_runtime_s``: so long
    nobody is preempted, where accounts set nothing else; ``preemptions_max``: so often a job is (rank 0 may
    nevertheless). ``preempt_depth``: how many kinds of waiting jobs are tried as preemptors in one
    decision; ``victims_max``: how many jobs one may displace. ``home_patience``: wait for the home device
    while that takes less than so many times what a move would, since what moves takes links and host memory
    from others, too, or less than ``home_patience_s_min``; both 0: go wherever there is room.
    ``energy_price_per_kwh``: in the currency of devices' prices, added to those by what operators say that
    devices draw."""

    name: str
    version: int = 1
    by_rank: bool = True
    by_fairness: bool = False
    within: Within = "arrival"
    passing: Passing = "never"
    reservations: int = 1
    preempts: tuple[Cause, ...] = ()
    shorter_factor: float = 2.0
    park_factor: float = 4.0
    fair_margin_s: float = 30.0
    min_runtime_s: float = 0.0
    preemptions_max: int = 50
    preempt_depth: int = 2
    victims_max: int = 64
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

    def __post_init__(self) -> None:
        if self.shorter_factor < 1:
            raise ValueError(
                f"shorter_factor {self.shorter_factor} is below 1: jobs would trade places for ever"
            )
        if self.reservations < 1 and self.passing in ("easy", "starving"):
            raise ValueError(f"{self.passing} needs at least one reservation; passing='always' is without")
        if self.age_step_s is not None and not self.age_step_s > 0:
            raise ValueError(f"age_step_s {self.age_step_s} is not above 0; None is without ageing")
        if not 0 <= self.energy_price_per_kwh < math.inf:
            raise ValueError(f"energy_price_per_kwh {self.energy_price_per_kwh} is not a price (0 or more)")


OURS = QueuePolicy(
    "ours",
    by_fairness=True,
    within="work",
    passing="starving",
    reservations=2,
    preempts=("rank", "fairness", "shorter"),
    shorter_factor=1.0,
    min_runtime_s=0.1,
    preemptions_max=500,
    age_step_s=600.0,
    age_stretch=50.0,
)

POLICIES: Mapping[str, QueuePolicy] = {
    policy.name: policy
    for policy in (
        QueuePolicy("fifo"),
        QueuePolicy("fifo_passing", passing="always"),
        QueuePolicy("sjf", within="remaining"),
        QueuePolicy(
            "srtf",
            within="remaining",
            passing="always",
            preempts=("shorter",),
            shorter_factor=1.0,
            preemptions_max=1_000_000,
        ),
        QueuePolicy(
            "tiresias",
            within="attained",
            passing="always",
            preempts=("attained",),
            attained_limits_s=(3600.0,),
            preemptions_max=1_000_000,
        ),
        QueuePolicy("qssf", within="service"),
        QueuePolicy("easy", passing="easy"),
        QueuePolicy("conservative", passing="conservative"),
        QueuePolicy("fair_share_only", by_rank=False, by_fairness=True, passing="always"),
        OURS,
    )
}
