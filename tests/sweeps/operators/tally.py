"""Counts per variant and outcome, and the list of everything that is not equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from sweeps.operators.outcomes import CLASSES, EQUAL, RIGHT, SILENT, Verdict

_LISTED = ("operator", "dtype", "variant", "inputs", "outcome", "reason")


class Tally:
    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        self._listed: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def add(self, op: str, dtype: str, sample: int, variant: str, mode: str, verdict: Verdict) -> None:
        self._counts[variant, mode, dtype][verdict.outcome] += 1
        if verdict.outcome not in (EQUAL, "raises in both alike"):
            self._listed[op, dtype, variant, mode, verdict.outcome, verdict.reason].append(sample)

    def add_all(self, part: dict[str, Any]) -> None:
        """What :meth:`rows` and :meth:`not_equal` of another tally say."""
        for row in part["counts"]:
            counts = {name: row[name] for name in CLASSES if name in row}
            self._counts[row["variant"], row["inputs"], row["dtype"]].update(counts)
        for row in part["not_equal"]:
            self._listed[tuple(row[name] for name in _LISTED)].extend(row["samples"])

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
        return [
            {**dict(zip(_LISTED, key, strict=True)), "samples": found}
            for key, found in sorted(self._listed.items())
        ]
