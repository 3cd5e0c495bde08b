"""Named sets of scores, weighted and added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from djinn_lab.jobs.placement.scores import (
    STEPS,
    Fragmentation,
    Score,
    ScoreInput,
    affinity,
    cost,
    dot_product,
    fit,
    load,
    locality,
    most_loaded,
)
from djinn_lab.jobs.request import Demand


class Term(NamedTuple):
    name: str
    weight: float
    score: Score


class Scoring:
    """Equal names mean equal scores."""

    def __init__(self, name: str, *terms: Term) -> None:
        self.name = name
        self.terms = terms

    def total(self, scored: ScoreInput) -> float:
        return sum(weight * score(scored) for _, weight, score in self.terms)

    def explain(self, scored: ScoreInput) -> dict[str, float]:
        return {name: weight * score(scored) for name, weight, score in self.terms}


def fragmentation(typical: Iterable[tuple[Demand, float]]) -> Scoring:
    """Return the scoring for pools whose usual requests are known, with their popularity: least
    fragmentation, and of nodes that are equal in that, the fullest. ``typical`` is part of what the name
    means: one set a pool."""
    return Scoring(
        "fragmentation",
        Term("fragmentation", 1.0, Fragmentation(typical)),
        Term("most_loaded", 0.5 / STEPS, most_loaded),
        LOCALITY,
        Term("affinity", 0.5, affinity),
        Term("cost", 0.1, cost),
    )


FIT, LOCALITY = Term("fit", 1.0, fit), Term("locality", 1.0, locality)
DEFAULT = Scoring(
    "default",
    Term("most_loaded", 1.0, most_loaded),
    LOCALITY,
    Term("affinity", 0.5, affinity),
    Term("cost", 0.1, cost),
)
"""The fullest node. The location of the state counts as much as all of that, a preference for labels half.
"""

SCORINGS: Mapping[str, Scoring] = {
    scoring.name: scoring
    for scoring in (
        DEFAULT,
        Scoring("best_fit", FIT),
        Scoring("most_loaded", Term("most_loaded", 1.0, most_loaded)),
        Scoring("spread", Term("load", 1.0, load)),
        Scoring("dot_product", Term("dot_product", 1.0, dot_product)),
        Scoring(
            "mixed_30_20_20_20_10",
            Term("fit", 0.3, fit),
            Term("affinity", 0.2, affinity),
            Term("load", 0.2, load),
            Term("locality", 0.2, locality),
            Term("cost", 0.1, cost),
        ),
    )
}
"""The default, what other schedulers ship, and the mix of fit 30, affinity 20, load 20, locality 20, cost
10 %."""
