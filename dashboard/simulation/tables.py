"""A simulated queue as rows of tables and as sentences."""

from __future__ import annotations

from djinn_lab.dashboard.widgets.table_cells import columns, number_cell, share_cell
from djinn_lab.simulator.queue.figures import AccountFigures, QueueFigures
from djinn_lab.simulator.queue.result_file import QueueResult
from djinn_lab.units import format_seconds

POLICY_COLUMNS = columns(
    ("policy", "Policy", "mono"),
    ("jobs", "Jobs", "number"),
    ("completion", "Completion, mean", "number"),
    ("completion_p99", "99 %", "number"),
    ("wait", "Wait, mean", "number"),
    ("wait_p99", "99 %", "number"),
    ("slowdown", "Slowdown", "number"),
    ("used", "Utilisation", "progress"),
    ("jain", "Jain", "number"),
    ("preemptions", "Preemptions", "number"),
)
ACCOUNT_COLUMNS = columns(
    ("account", "Account", "mono"),
    ("jobs", "Jobs", "number"),
    ("device_s", "Device time", "number"),
    ("wait", "Wait, mean", "number"),
    ("completion", "Completion, mean", "number"),
    ("progress", "Run time / completion", "progress"),
)
ACCOUNTS_SHOWN_MAX = 200


def policy_rows(result: QueueResult) -> list[dict[str, object]]:
    """Return a row for each run, in the file's order."""
    return [_policy_row(run.figures) for run in result.runs]


def _policy_row(found: QueueFigures) -> dict[str, object]:
    return {
        "id": found.policy,
        "policy": found.policy,
        "jobs": found.jobs,
        "completion": number_cell(found.jct_mean_s, format_seconds),
        "completion_p99": number_cell(found.jct_p99_s, format_seconds),
        "wait": number_cell(found.wait_mean_s, format_seconds),
        "wait_p99": number_cell(found.wait_p99_s, format_seconds),
        "slowdown": number_cell(found.slowdown_mean, "{:.2f}".format),
        "used": share_cell(found.utilisation, "{:.1%}".format),
        "jain": number_cell(found.jain, "{:.3f}".format),
        "preemptions": found.preemptions,
    }


def account_rows(accounts: list[AccountFigures]) -> list[dict[str, object]]:
    """List the accounts with the most device time first, at most :data:`ACCOUNTS_SHOWN_MAX`."""
    return [
        {
            "id": one.account,
            "account": one.account,
            "jobs": one.jobs,
            "device_s": number_cell(one.device_s, format_seconds),
            "wait": number_cell(one.wait_mean_s, format_seconds),
            "completion": number_cell(one.jct_mean_s, format_seconds),
            "progress": share_cell(one.progress, "{:.1%}".format),
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
        summary += f" {result.left_out:,} lines of the trace are left out."
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
