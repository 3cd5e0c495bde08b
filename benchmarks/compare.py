"""``python -m benchmarks.compare OLD NEW``: which figures are worse in the second result file, beyond noise.

A figure with baselines is compared by its ratios to them, which both runs took in alternating rounds: what
else the machine did hits both sides of a ratio. A figure without is compared by our samples. It changed when
the medians differ by more than CHANGE_MIN and the middle halves of the samples do not overlap.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import OURS
from benchmarks.samples import Summary

CHANGE_MIN = 0.05
"""Smaller differences of medians are noise, whatever the spread of the samples says."""
MORE_IS_BETTER = frozenset({"GB/s"})
"""Units. Of every other, less is better."""


@dataclass(frozen=True)
class Measured:
    """One summary of a file: of our samples, or of ours over a baseline's (``beside``)."""

    benchmark: str
    name: str
    unit: str
    beside: str | None
    summary: Summary

    @property
    def key(self) -> tuple[str, str, str | None]:
        return self.benchmark, self.name, self.beside

    @property
    def title(self) -> str:
        beside = "" if self.beside is None else f", beside {self.beside}"
        return f"{self.benchmark}: {self.name}{beside}"


@dataclass(frozen=True)
class Change:
    """``worse_by``: part of the old median, negative for an improvement; infinite from 0."""

    old: Measured
    new: Measured
    worse_by: float

    def __str__(self) -> str:
        unit = "x" if self.new.beside else f" {self.new.unit}"
        verb = "worse" if self.worse_by > 0 else "better"
        return (
            f"{self.new.title}: {self.old.summary.median:.3g} -> {self.new.summary.median:.3g}{unit}, "
            f"{abs(self.worse_by):.0%} {verb} "
            f"(quartiles {_quartiles(self.old.summary)} -> {_quartiles(self.new.summary)})"
        )


@dataclass(frozen=True)
class Comparison:
    """``only_old``, ``only_new``: titles of what the other file has not."""

    regressions: list[Change]
    improvements: list[Change]
    unchanged: int
    only_old: list[str]
    only_new: list[str]


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Compare the contents of two result files of ``python -m benchmarks``."""
    before = {one.key: one for one in measured_in(old)}
    after = {one.key: one for one in measured_in(new)}
    changes = [_change(before[key], after[key]) for key in after if key in before]
    found = [change for change in changes if change is not None]
    return Comparison(
        regressions=[change for change in found if change.worse_by > 0],
        improvements=[change for change in found if change.worse_by < 0],
        unchanged=len(changes) - len(found),
        only_old=[one.title for key, one in before.items() if key not in after],
        only_new=[one.title for key, one in after.items() if key not in before],
    )


def measured_in(content: Mapping[str, Any]) -> Iterator[Measured]:
    """What a file's figures are compared by; skipped ones are left out."""
    for figure in content["figures"]:
        if figure["skipped"] is not None:
            continue
        chosen = figure["ratios"] or {None: figure["series"][OURS]}
        for beside, summary in chosen.items():
            yield Measured(figure["benchmark"], figure["name"], figure["unit"], beside, Summary(**summary))


def _change(old: Measured, new: Measured) -> Change | None:
    """None where the difference is noise."""
    up = new.summary.median - old.summary.median
    if abs(up) <= CHANGE_MIN * abs(old.summary.median):
        return None
    if new.summary.q1 <= old.summary.q3 and old.summary.q1 <= new.summary.q3:
        return None
    part = up / abs(old.summary.median) if old.summary.median else float("inf") * up
    return Change(old, new, -part if new.unit in MORE_IS_BETTER else part)


def _quartiles(summary: Summary) -> str:
    return f"{summary.q1:.3g}..{summary.q3:.3g}"


def report(comparison: Comparison) -> str:
    """The comparison as lines for people, regressions first, the largest first."""
    lines = [f"{len(comparison.regressions)} worse beyond noise"]
    lines += [f"  {change}" for change in sorted(comparison.regressions, key=lambda one: -one.worse_by)]
    lines.append(f"{len(comparison.improvements)} better beyond noise")
    lines += [f"  {change}" for change in sorted(comparison.improvements, key=lambda one: one.worse_by)]
    lines.append(f"{comparison.unchanged} within noise")
    for which, titles in (("old", comparison.only_old), ("new", comparison.only_new)):
        if titles:
            lines.append(f"only in the {which} file: {len(titles)}")
            lines += [f"  {title}" for title in titles]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Returns 1 where a figure is worse."""
    parser = argparse.ArgumentParser("python -m benchmarks.compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    old, new = (json.loads(path.read_text()) for path in (options.old, options.new))
    for path, content in ((options.old, old), (options.new, new)):
        machine, commit = content["machine"], content.get("commit") or "an unknown commit"
        where = f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']:.1f}"
        print(f"{path.name}: {where}, {commit}")
    comparison = compare(old, new)
    print(report(comparison))
    return 1 if comparison.regressions else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
