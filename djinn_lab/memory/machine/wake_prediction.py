"""Predicts when an idle session computes again.

Gaps are taken as lognormal: on traces of real agents, the best predictors err by a factor of e^1.4 to
e^1.7 (one sigma). Once ``elapsed`` seconds of such a gap are over, the remaining time *grows* with the
elapsed time: an overdue session is expected later, not sooner. An announced gap is corrected by the
user's earlier errors (mean and spread of ln(actual / announced)). Without an announcement the session's
own gaps count, without those the gaps of all sessions."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

_NORMAL = NormalDist()
_ROOT_HALF = math.sqrt(0.5)
SIGMA_UNKNOWN = 1.5
"""Spread of ln(actual / expected) before anything was learned."""
SIGMA_MIN = 0.1
MEDIAN_UNKNOWN_S = 60.0
GAP_S_MIN = 0.01
"""Shorter gaps are counted as this, so that their logarithm stays finite."""
_FAR = 5.0
"""Standard deviations after which the tail is computed by its hazard, since 1 - cdf has no digits left."""
WITHIN = (1 / 6, 5 / 6)
"""Two times in three."""


class PredictedWake(NamedTuple):
    """Seconds from now: the median, and the bounds two times in three. ``known``: it was announced or
    learned."""

    after_s: float
    from_s: float
    until_s: float
    known: bool = True


class Gap(NamedTuple):
    """The distribution of a gap: its median, the spread of its logarithm, and since when it runs."""

    median_s: float
    sigma: float
    since_s: float
    known: bool = True


NOW = PredictedWake(0.0, 0.0, 0.0)
NEVER = PredictedWake(math.inf, math.inf, math.inf, known=False)


def expect(gap: Gap, now_s: float) -> PredictedWake:
    """The median of the remaining time, and its bounds."""
    low, high = WITHIN
    return PredictedWake(
        remaining_s(gap, now_s, 0.5),
        remaining_s(gap, now_s, low),
        remaining_s(gap, now_s, high),
        gap.known,
    )


def remaining_s(gap: Gap, now_s: float, share: float) -> float:
    """The quantile ``share`` of the remaining time, given that the gap lasts until now."""
    elapsed_s = now_s - gap.since_s
    median_s = max(gap.median_s, GAP_S_MIN)
    if gap.sigma < SIGMA_MIN:
        return max(0.0, median_s - elapsed_s)
    if elapsed_s < GAP_S_MIN * 1e-6:
        return median_s * math.exp(gap.sigma * _NORMAL.inv_cdf(share))
    passed = math.log(elapsed_s / median_s) / gap.sigma
    if passed > _FAR:
        return elapsed_s * math.expm1(-gap.sigma * math.log1p(-share) / passed)
    left = 0.5 * math.erfc(passed * _ROOT_HALF) * (1.0 - share)
    return max(0.0, median_s * math.exp(-gap.sigma * _NORMAL.inv_cdf(left)) - elapsed_s)


class Spread:
    """Running mean and spread of logarithms: the first few values count equally, then the latest by
    ``weight``."""

    __slots__ = ("count", "mean", "variance", "weight")

    def __init__(self, weight: float = 0.2) -> None:
        self.weight = weight
        self.count = 0
        self.mean = 0.0
        self.variance = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        share = max(self.weight, 1.0 / self.count)
        off = value - self.mean
        self.mean += share * off
        self.variance = (1.0 - share) * (self.variance + share * off * off)

    def sigma(self, prior: float = SIGMA_UNKNOWN, prior_count: float = 3.0) -> float:
        """The spread, drawn towards ``prior`` while there are few values."""
        if self.count == 0:
            return prior
        count = min(self.count, 2.0 / self.weight)
        pooled = (count * self.variance + prior_count * prior * prior) / (count + prior_count)
        return math.sqrt(pooled)


class WakePredictor:
    """Predict wake-ups from past gaps, per session, per user and over all. ``taught`` counts them."""

    def __init__(self) -> None:
        self.taught = 0
        self._gaps: dict[str, Spread] = {}
        self._all_gaps = Spread(weight=0.02)
        self._errors: dict[str, Spread] = {}
        self._all_errors = Spread(weight=0.05)

    def ended(self, session: str, user: str, gap_s: float, announced: tuple[float, float] | None) -> None:
        """Record an ended gap. ``announced``: the announced and the actual seconds, both from the
        announcement."""
        self.taught += 1
        logarithm = math.log(max(gap_s, GAP_S_MIN))
        self._gaps.setdefault(session, Spread()).add(logarithm)
        self._all_gaps.add(logarithm)
        if announced is not None:
            expected_s, actual_s = announced
            error = math.log(max(actual_s, GAP_S_MIN) / max(expected_s, GAP_S_MIN))
            self._errors.setdefault(user, Spread()).add(error)
            self._all_errors.add(error)

    def forget(self, session: str) -> None:
        self._gaps.pop(session, None)

    def bias(self, user: str) -> float:
        """Actual over announced: the user's own, shrunk towards that of all users while there are few
        samples."""
        own, of_all = self._errors.get(user), self._all_errors
        if own is None:
            return math.exp(of_all.mean)
        return math.exp((own.count * own.mean + 2.0 * of_all.mean) / (own.count + 2.0))

    def gap(self, session: str, user: str, since_s: float, announced: tuple[float, float] | None) -> Gap:
        """Predict a gap. ``announced``: the estimate and when it was given. The estimate and the
        session's past are weighted by how well each predicted before."""
        past = self._past(session, since_s)
        if announced is None:
            return past
        expected_s, at_s = announced
        own = self._errors.get(user)
        sigma = self._all_errors.sigma() if own is None else own.sigma(self._all_errors.sigma())
        announced_s = max(expected_s * self.bias(user), GAP_S_MIN)
        if not past.known:
            return Gap(announced_s, sigma, at_s)
        announced_weight, past_weight = sigma**-2, past.sigma**-2
        weight = announced_weight + past_weight
        lead_s = at_s - since_s
        mean = (
            announced_weight * math.log(max(announced_s + lead_s, GAP_S_MIN))
            + past_weight * math.log(past.median_s)
        ) / weight
        return Gap(math.exp(mean), max(SIGMA_MIN, weight**-0.5), since_s)

    def _past(self, session: str, since_s: float) -> Gap:
        own = self._gaps.get(session)
        if own is not None:
            return Gap(math.exp(own.mean), own.sigma(self._all_gaps.sigma()), since_s)
        if self._all_gaps.count:
            return Gap(math.exp(self._all_gaps.mean), self._all_gaps.sigma(), since_s)
        return Gap(MEDIAN_UNKNOWN_S, SIGMA_UNKNOWN, since_s, known=False)
