"""The page of all Prometheus metrics, from the objects that a pool renders."""

from __future__ import annotations

from typing import Any

from prometheus_client.metrics import MetricWrapperBase
from reference_text import page, table

from djinn_lab.memory.snapshot import MemorySnapshot
from djinn_lab.pool.metrics.memory import MemoryCollector
from djinn_lab.pool.metrics.pool import Metrics


def metrics_page(snapshot: MemorySnapshot) -> str:
    """Return the page. ``snapshot``: of any session memory; metrics of session memory are made from one."""
    collector = MemoryCollector()
    collector.note(snapshot, 0.0)
    own = [one for one in vars(Metrics()).values() if isinstance(one, MetricWrapperBase)]
    return page(
        "# Metrics",
        "What a pool answers to [`GET /metrics`](rest.md#get-metrics). What values of labels mean is on "
        "[Pool](../pool.md#metrics).",
        "## Of the pool",
        _table([row for metric in own for family in metric.describe() for row in [_row(family, metric)]]),
        "## Of session memory",
        _table([_row(family, family) for family in collector.collect()]),
    )


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    return table(("Metric", "Type", "Labels", "What it is"), rows)


def _row(family: Any, labelled: Any) -> tuple[str, str, str, str]:
    """``family``: name, type and help of a metric. ``labelled``: what knows the names of its labels, which
    prometheus_client offers no other way to."""
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in labelled._labelnames)
    return f"`{name}`", family.type, labels, family.documentation
