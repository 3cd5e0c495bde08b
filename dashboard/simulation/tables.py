"""A simulated queue as rows of tables and as sentences."""

from __future__ import annotations

from djinn_lab.simulator.queue.figures import AccountFigures, QueueFigures
from djinn_lab.simulator.queue.result_file import QueueResult
from djinn_lab.units import format_seconds

POLICY_COLUMNS = [
    {"key": "policy", "label": "Policy", "kind": "mono"},
    {"key": "jobs", "label": "Jobs", "kind": "number"},
    {"key": "completion", "label": "Completion, mean", "kind": "number"},
    {"key": "completion_p99", "label": "99 %", "kind": "number"},
    {"key": "wait", "label": "Wait, mean", "kind": "number"},
    {"key": "wait_p99", "label": "99 %", "kind": "number"},
    {"key": "slowdown", "label": "Slowdown", "kind": "number"},
    {"key": "used", "label": "Utilisation", "kind": "progress"},
    {"key": "jain", "label": "Jain", "kind": "number"},
    {"key": "preemptions", "label": "Preemptions", "kind": "number"},
]
ACCOUNT_COLUMNS = [
    {"key": "account", "label": "Account", "kind": "mono"},
    {"key": "jobs", "label": "Jobs", "kind": "number"},
    {"key": "device_s", "label": "Device time", "kind": "number"},
    {"key": "wait", "label": "Wait, mean", "kind": "number"},
    {"key": "completion", "label": "Completion, mean", "kind": "number"},
    {"key": "progress", "label": "Run time / completion", "kind": "progress"},
]
ACCOUNTS_SHOWN_MAX = 200


def policy_rows(result: QueueResult) -> list[dict[str, object]]:
    """Return a row for each run, in the file's order."""
    return [_policy_row(run.figures) for run in result.runs]


def _policy_row(found: QueueFigures) -> dict[str, object]:
    return {
        "id": found.policy,
        "policy": found.policy,
        "jobs": found.jobs,
        "completion": _seconds(found.jct_mean_s),
        "completion_p99": _seconds(found.jct_p99_s),
        "wait": _seconds(found.wait_mean_s),
        "wait_p99": _seconds(found.wait_p99_s),
        "slowdown": {"text": f"{found.slowdown_mean:.2f}", "sort": found.slowdown_mean},
        "used": _part(found.utilisation),
        "jain": None if found.jain is None else {"text": f"{found.jain:.3f}", "sort": found.jain},
        "preemptions": found.preemptions,
    }


def account_rows(accounts: list[AccountFigures]) -> list[dict[str, object]]:
    """List the accounts with the most device time first, at most :data:`ACCOUNTS_SHOWN_MAX`."""
    return [
        {
            "id": one.account,
            "account": one.account,
            "jobs": one.jobs,
            "device_s": _seconds(one.device_s),
            "wait": _seconds(one.wait_mean_s),
            "completion": _seconds(one.jct_mean_s),
            "progress": _part(one.progress),
        }
        for one in accounts[:ACCOUNTS_SHOWN_MAX]
    ]


def result_sentence(result: QueueResult) -> str:
    """Say what was simulated, and what was left out."""
    devices = sum(result.nodes.values())
    pools = f" in {len(result.nodes)} pools" if len(result.nodes) > 1 else ""
    summary = f"{devices:,} devices{pools}; run times as {_ESTIMATES[result.settings.estimates]}."
    unfinished = max((run.figures.unfinished for run in result.runs), default=0)
    if unfinished:
        summary += f" {unfinished:,} jobs fit on no node and are not counted."
    if result.left_out:
        summary += f" {result.left_out:,} lines of the trace are no work."
    if result.broken:
        first = result.broken_lines[0] if result.broken_lines else None
        shown = f", the first is line {first.number}: {first.reason}" if first else ""
        summary += f" {result.broken:,} lines could not be understood{shown}."
    return summary


_ESTIMATES = {
    "given": "the trace estimates them, where it does",
    "exact": "an oracle would know them",
    "history": "the account’s last jobs suggest",
    "none": "unknown",
}


def best_sentence(result: QueueResult) -> str:
    """Say which policy was quickest on average, and which was most even."""
    if len(result.runs) < 2:
        return ""
    figures = [run.figures for run in result.runs]
    quickest = min(figures, key=lambda one: one.jct_mean_s)
    summary = f"{quickest.policy} completes soonest on average ({format_seconds(quickest.jct_mean_s)})"
    judged = [(one.jain, one.policy) for one in figures if one.jain is not None]
    if judged:
        jain, policy = max(judged)
        summary += f", {policy} is most even between accounts (Jain’s index {jain:.3f})"
    return f"{summary}."


def _seconds(value: float) -> dict[str, object]:
    return {"text": format_seconds(value), "sort": value}


def _part(value: float) -> dict[str, object]:
    return {"done": value, "total": 1, "text": f"{value:.1%}", "sort": value}
