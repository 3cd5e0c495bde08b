"""Counts per variant and outcome, and the list of everything that is not equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from sweeps.operators.outcomes import CLASSES, EQUAL, RIGHT, SILENT, Verdict


class Tally:
    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        self._listed: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def add(self, op: str, dtype: str, sample: int, variant: str, mode: str, verdict: Verdict) -> None:
        self._counts[variant, mode, dtype][verdict.outcome] += 1
        if verdict.outcome not in (EQUAL, "raises in both alike"):
            self._listed[op, dtype, variant, mode, verdict.outcome, verdict.reason].append(sample)

    def total(self) -> Counter[str]:
        return sum(self._counts.values(), Counter())

    def summary(self) -> dict[str, Any]:
        total = self.total()
        count = total.total()
        return {
            "runs": count,
            "right": sum(total[name] for name in RIGHT),
            "silently wrong": sum(total[name] for name in SILENT),
            "outcomes": {name: total[name] for name in CLASSES},
        }

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"variant": variant, "inputs": mode, "dtype": dtype, "runs": counts.total(), **counts}
            for (variant, mode, dtype), counts in sorted(self._counts.items())
        ]

    def not_equal(self) -> list[dict[str, Any]]:
        names = ("operator", "dtype", "variant", "inputs", "outcome", "reason")
        return [
            {**dict(zip(names, key, strict=True)), "samples": found}
            for key, found in sorted(self._listed.items())
        ]
