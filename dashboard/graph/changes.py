"""What changed between two runs, for every box of the later run's graph and as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from djinn_lab.dashboard.graph.figures import Floats, NodeFigures
from djinn_lab.dashboard.graph.folding import Item, short_op
from djinn_lab.dashboard.widgets.table_cells import columns, number_cell
from djinn_lab.srg.comparison import Change, Run, RunComparison, changes_by, compare_runs
from djinn_lab.srg.graph import SRG, Node
from djinn_lab.units import counted, format_seconds

Basis = Literal["measured", "predicted"]
ROWS_MAX = 300
OUTSIDE = "outside modules"
CHANGE_COLUMNS = columns(
    ("name", "Group or op", "mono"),
    ("added", "Added", "number"),
    ("removed", "Removed", "number"),
    ("matched", "In both", "number"),
    ("before", "Then", "number"),
    ("after", "Now", "number"),
    ("difference", "Difference", "number"),
    ("ratio", "Ratio", "number"),
)


class ItemChanges:
    """Compare two runs of a cell. ``basis``: which seconds count; measured ones where both runs have them."""

    def __init__(
        self, before: tuple[SRG, NodeFigures], after: tuple[SRG, NodeFigures], other_name: str
    ) -> None:
        self.other_name = other_name
        both = before[1].measured_s is not None and after[1].measured_s is not None
        self.basis: Basis = "measured" if both else "predicted"
        self._before = _run(*before, self.basis)
        self._after = _run(*after, self.basis)
        self.comparison = compare_runs(self._before.nodes, self._after.nodes)
        self._sums = _sums(self.comparison, self._before, self._after)

    @property
    def whole_s(self) -> float:
        """Return the seconds of the later run's ops."""
        return float(self._sums[4][-1])

    def of(self, item: Item) -> Change:
        """Return what changed in an item of the later run's graph; removed ops count where they would be."""
        matched, added, removed, before_s, after_s = (
            float(sums[item.last] - sums[item.first]) for sums in self._sums
        )
        return Change(round(matched), round(added), round(removed), before_s, after_s)

    @property
    def total(self) -> Change:
        """Return what changed in all."""
        comparison = self.comparison
        seconds = [float(np.sum(run.seconds)) for run in (self._before, self._after)]
        return Change(len(comparison.pairs), len(comparison.added), len(comparison.removed), *seconds)

    def rows(self, by: str) -> tuple[list[dict[str, object]], str]:
        """List changes by ``op`` or by group, the largest difference first, and a note when not all are
        listed."""
        name: Callable[[Node], str] = _op_name if by == "op" else _group_name
        changes = changes_by(self.comparison, self._before, self._after, name)
        ordered = sorted(changes.items(), key=lambda entry: (-abs(entry[1].difference_s), entry[0]))
        shown = [change_row(label, change) for label, change in ordered[:ROWS_MAX]]
        more = len(ordered) - len(shown)
        return shown, f"The {ROWS_MAX} largest differences of {len(ordered)}" if more else ""

    def sentence(self) -> str:
        """Summarise the comparison in a sentence."""
        total = self.total
        counts = f"{counted(total.added, 'op')} added, {total.removed} removed, {total.matched} in both"
        times = f"{format_seconds(total.after_s)} of {self.basis} op time now, "
        times += f"{format_seconds(total.before_s)} then"
        if total.ratio is not None:
            times += f" ({total.ratio:.2g} times)"
        sentence = f"Compared with {self.other_name}: {counts}; {times}."
        rows, _ = self.rows("group")
        if rows and total.difference_s:
            sentence += f" The largest difference is in {rows[0]['name']}."
        if self.basis == "predicted":
            sentence += " Not all ops of both runs were measured, so predicted times are compared."
        return sentence


def _run(srg: SRG, figures: NodeFigures, basis: Basis) -> Run:
    seconds = figures.measured_s if basis == "measured" else figures.predicted_s
    assert seconds is not None
    return Run(srg.nodes, seconds.tolist())


def _sums(comparison: RunComparison, before: Run, after: Run) -> list[Floats]:
    """Prefix sums over the later run's nodes: ops in both, added, removed, seconds before and after."""
    count = len(after.nodes)
    matched, added, removed, before_s = (np.zeros(count) for _ in range(4))
    for one, other in comparison.pairs:
        matched[other] = 1
        before_s[other] = before.seconds[one]
    added[list(comparison.added)] = 1
    for node, anchor in zip(comparison.removed, comparison.anchors, strict=True):
        if anchor is not None:
            removed[anchor] += 1
            before_s[anchor] += before.seconds[node]
    after_s = np.array(after.seconds, dtype=np.float64)
    return [np.concatenate([[0.0], np.cumsum(one)]) for one in (matched, added, removed, before_s, after_s)]


def _op_name(node: Node) -> str:
    return short_op(node.op)


def _group_name(node: Node) -> str:
    """Return the module; outside modules the phase, as cell lines move when a cell is edited."""
    return node.module or f"{OUTSIDE}, {node.phase}"


def change_row(label: str, change: Change) -> dict[str, object]:
    """Show a change as a row of a table."""
    had, has = change.matched + change.removed, change.matched + change.added
    return {
        "id": label,
        "name": label,
        "added": change.added or None,
        "removed": change.removed or None,
        "matched": change.matched,
        "before": number_cell(change.before_s if had else None, format_seconds),
        "after": number_cell(change.after_s if has else None, format_seconds),
        "difference": number_cell(change.difference_s, _signed),
        "ratio": number_cell(change.ratio, "{:.2f}×".format),
    }


def _signed(seconds: float) -> str:
    return f"{'−' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
