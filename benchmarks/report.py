"""Figures as a table for people and as JSON for documents to cite."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import OURS, Figure
from benchmarks.machine import now, this_machine
from benchmarks.samples import Summary

FORMAT = 1
WIDTH = 150


def print_figures(title: str, figures: Iterable[Figure]) -> None:
    table = Table(title=title, title_justify="left", show_lines=False)
    table.add_column("figure")
    table.add_column(f"{OURS}: median [quartiles]", justify="right")
    table.add_column("p99", justify="right")
    table.add_column("n", justify="right")
    table.add_column("baseline: median, ratio")
    table.add_column("goal")
    for item in figures:
        table.add_row(*_cells(item))
    Console(highlight=False, width=max(Console().width, WIDTH)).print(table)


def _cells(item: Figure) -> tuple[str, ...]:
    if item.skipped is not None:
        return item.name, f"skipped: {item.skipped}", "", "", "", ""
    ours = item.series[OURS]
    baselines = "\n".join(
        f"{name}: {_short(item.series[name].median)} {item.unit}, {ratio.median:.3g}x"
        for name, ratio in item.ratios.items()
    )
    goals = "\n".join(goal.text for goal in item.goals)
    return item.name, _spread(ours, item.unit), _short(ours.p99), str(ours.count), baselines, goals


def _spread(summary: Summary, unit: str) -> str:
    return f"{_short(summary.median)} {unit} [{_short(summary.q1)} .. {_short(summary.q3)}]"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def write_results(folder: Path, figures: Iterable[Figure], quick: bool, commit: str) -> Path:
    """``<machine>-<date>.json`` in ``folder``."""
    machine, at = this_machine(), now()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{machine.slug}-{at.date().isoformat()}.json"
    content: dict[str, Any] = {
        "format": FORMAT,
        "finished_at": at.isoformat(),
        "quick": quick,
        "commit": commit,
        "machine": asdict(machine),
        "figures": [asdict(item) for item in figures],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
