"""Check that the stages of a cell's report sum to its total, for every cell that a benchmark measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.samples import Summary
from djinn_lab.client.report import CellReport

UNATTRIBUTED_PERCENT_MAX = 1.0


@dataclass(frozen=True)
class AuditedCell:
    """``total_s`` and the sum of the stages, in seconds, of one cell of ``benchmark``."""

    benchmark: str
    total_s: float
    stages_s: float

    @property
    def gap_percent(self) -> float:
        return abs(self.total_s - self.stages_s) / self.total_s * 100


def audited(benchmark: str, report: CellReport) -> AuditedCell:
    return AuditedCell(benchmark, report.total_s, sum(report.stages.values()))


def median_stages(reports: Sequence[CellReport]) -> dict[str, float]:
    """Seconds by stage: the median of each over like cells."""
    names = dict.fromkeys(name for report in reports for name in report.stages)
    return {name: Summary.of([report.stages.get(name, 0.0) for report in reports]).median for name in names}


def stage_figures(cells: Iterable[AuditedCell]) -> list[Figure]:
    """One figure a benchmark; the goal holds for its worst cell."""
    gaps: dict[str, list[float]] = {}
    for cell in cells:
        gaps.setdefault(cell.benchmark, []).append(cell.gap_percent)
    goal = Goal(UNATTRIBUTED_PERCENT_MAX, "maximum")
    return [
        figure("stages", f"|total - sum of stages| / total, cells of {name}", "%", {OURS: found}, [goal])
        for name, found in gaps.items()
    ]
