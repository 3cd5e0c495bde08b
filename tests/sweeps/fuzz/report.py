"""Counting what the sequences showed."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

SEEDS_KEPT = 20
SHOWN = 60


@dataclass
class Tally:
    """``crashes`` and ``hangs``: (seed, how the process ended). ``groups``: differences by op and message."""

    sequences: int = 0
    steps: int = 0
    lazy: int = 0
    crashes: list[tuple[int, str]] = field(default_factory=list)
    hangs: list[tuple[int, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, report: dict[str, Any]) -> None:
        self.sequences += 1
        self.steps += report["steps"]
        self.lazy += report["lazy"]
        if "kind" in report:
            self.kinds[report["kind"]] += 1
            self.groups[tuple(report["group"])].append(report)

    def _ordered(self) -> list[tuple[tuple[str, ...], list[dict[str, Any]]]]:
        return sorted(self.groups.items(), key=lambda item: -len(item[1]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "sequences": self.sequences,
            "steps": self.steps,
            "lazy_values": self.lazy,
            "crashes": self.crashes,
            "hangs": self.hangs,
            "differences": dict(self.kinds),
            "groups": [
                {
                    "op": key[0],
                    "kind": found[0]["kind"],
                    "count": len(found),
                    "seeds": [report["seed"] for report in found[:SEEDS_KEPT]],
                    "text": found[0]["text"],
                    "short": next((report["short"] for report in found if "short" in report), None),
                }
                for key, found in self._ordered()
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.sequences} sequences, {self.steps} steps, {self.lazy} lazy values;"
            f" {len(self.crashes)} crashes, {len(self.hangs)} hangs, differences {dict(self.kinds)}"
        ]
        lines += [f"crash: seed {seed}: {how}" for seed, how in self.crashes]
        lines += [f"hang: seed {seed}: {how}" for seed, how in self.hangs]
        for key, found in self._ordered()[:SHOWN]:
            text = found[0]["text"].partition("\n")[0][:160]
            lines.append(f"{len(found):5} {found[0]['kind']:9} {key[0]:16} seed {found[0]['seed']}: {text}")
        return "\n".join(lines)
