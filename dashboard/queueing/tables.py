"""The queue as rows of tables and as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from djinn_lab.dashboard.widgets.table_cells import columns, number_cell, share_cell
from djinn_lab.dashboard.widgets.theme import STATE_COLOURS
from djinn_lab.jobs import RANKS
from djinn_lab.jobs.decision import CalendarReservation
from djinn_lab.jobs.fairness import AccountView
from djinn_lab.protocol.rest.queue import QueueView, RunningJob, StallView, WaitingJob, is_leaf
from djinn_lab.units import format_seconds, whole_seconds

SORTS_LAST = 1e15
ACCOUNT_COLUMNS = columns(
    ("account", "Account", "mono"),
    ("weight", "Weight", "number"),
    ("share", "Share", "progress"),
    ("part", "Usage", "progress"),
    ("used", "Device time", "number"),
    ("turn", "Rank", "number"),
    ("waiting", "Pending", "number"),
    ("running", "Running", "number"),
    ("limits", "Limits", "text"),
)
WAITING_COLUMNS = columns(
    ("place", "Queue position", "number"),
    ("state", "State", "pill"),
    ("cell", "Cell", "mono"),
    ("user", "User", "short"),
    ("priority", "Priority", "short"),
    ("since", "Wait", "number"),
    ("expected", "Predicted start", "number"),
    ("why", "Reason", "text"),
    ("job", "Job", "mono"),
)
RUNNING_COLUMNS = columns(
    ("device", "Device", "short"),
    ("cell", "Cell", "mono"),
    ("user", "User", "short"),
    ("priority", "Priority", "short"),
    ("since", "Run time", "number"),
    ("left", "Predicted end", "number"),
    ("preempted", "Preempted", "number"),
    ("job", "Job", "mono"),
    ("note", "Note", "text"),
)
RESERVATION_COLUMNS = columns(
    ("name", "Reservation", "mono"),
    ("devices", "Devices", "short"),
    ("accounts", "Accounts", "text"),
    ("begins", "Begins in", "number"),
    ("ends", "Ends in", "number"),
)


def account_rows(queue: QueueView) -> list[dict[str, object]]:
    """List the leaf accounts, the next to be served first. An account with limits for all accounts below it,
    such as a project's guaranteed devices, stands above the first of them."""
    had = queue.device_s()
    leaves = sorted((one for one in queue.accounts if is_leaf(one)), key=lambda one: one.rank or 0)
    shared = {one.account: one for one in queue.accounts if not is_leaf(one) and limits_text(one)}
    ordered: dict[str, AccountView] = {}
    for leaf in leaves:
        above = (one for name, one in sorted(shared.items()) if _is_below(leaf.account, name))
        ordered.update((one.account, one) for one in (*above, leaf) if one.account not in ordered)
    ordered.update((name, one) for name, one in sorted(shared.items()) if name not in ordered)
    waiting = Counter(cell.account for cell in queue.waiting)
    running = Counter(cell.account for cell in queue.running)
    return [_account_row(queue, account, had, waiting, running) for account in ordered.values()]


def _is_below(account: str, above: str) -> bool:
    return account.startswith(f"{above}/")


def _account_row(
    queue: QueueView,
    account: AccountView,
    had: Mapping[str, float],
    waiting: Mapping[str, int],
    running: Mapping[str, int],
) -> dict[str, object]:
    own = queue.leaves(account.account)
    had_s = sum(had[leaf.account] for leaf in own)
    return {
        "id": account.account,
        "account": account.account if is_leaf(account) else f"{account.account}/…",
        "weight": number_cell(account.weight, "{:g}".format),
        "share": share_cell(account.share),
        "part": share_cell(queue.usage(account.account)),
        "used": number_cell(had_s, format_seconds),
        "turn": account.rank,
        "waiting": sum(waiting[leaf.account] for leaf in own),
        "running": sum(running[leaf.account] for leaf in own),
        "limits": limits_text(account),
    }


def limits_text(account: AccountView) -> str:
    limits = account.limits
    shown = [
        (limits.devices_guaranteed or None, "guaranteed devices: {:g}"),
        (limits.devices_max, "devices at most: {:g}"),
        (limits.devices_soft, "devices while others want them: {:g}"),
        (limits.device_s_max, "{:g} device-seconds a week"),
        (limits.queued_max, "{:g} pending"),
    ]
    texts = [text.format(value) for value, text in shown if value is not None]
    if limits.rank_min:
        texts.append(f"at best {list(RANKS)[limits.rank_min]}")
    return ". ".join(filter(None, (", ".join(texts), account.overcommitted)))


def waiting_rows(queue: QueueView, names: Mapping[str, str]) -> list[dict[str, object]]:
    """List the pending jobs; ``names``: of cells, by job, as far as they are known."""
    return [_waiting_row(cell, queue.now, names.get(cell.job)) for cell in queue.waiting]


def _waiting_row(cell: WaitingJob, now: float, name: str | None) -> dict[str, object]:
    left_s = None if cell.expected_at is None else max(0.0, cell.expected_at - now)
    return {
        "id": cell.job,
        "place": cell.position,
        "state": {"text": cell.state.lower(), "colour": STATE_COLOURS.get(cell.state, "#7F8C99")},
        "cell": name,
        "user": cell.user,
        "priority": _priority_text(cell),
        "since": number_cell(cell.waited_s, whole_seconds),
        "expected": _no_start(cell) if left_s is None else number_cell(left_s, whole_seconds),
        "why": cell.why,
        "job": cell.job[:8],
    }


def _no_start(cell: WaitingJob) -> dict[str, object] | None:
    """Say why no start is predicted; such cells come behind the others."""
    return _unknown(cell.unpredicted, cell.sentence)


def _unknown(why: str, title: str = "") -> dict[str, object] | None:
    return {"text": why, "title": title, "sort": SORTS_LAST} if why else None


def running_rows(queue: QueueView, names: Mapping[str, str]) -> list[dict[str, object]]:
    """List the running jobs; ``names``: of cells, by job, as far as they are known."""
    return [_running_row(cell, queue.now, names.get(cell.job)) for cell in queue.running]


def _running_row(cell: RunningJob, now: float, name: str | None) -> dict[str, object]:
    left = None if cell.ends_at is None else max(0.0, cell.ends_at - now)
    return {
        "id": cell.job,
        "device": ", ".join(filter(None, (cell.device, *cell.members))),
        "cell": name,
        "user": cell.user,
        "priority": _priority_text(cell),
        "since": number_cell(cell.run_s(now), whole_seconds),
        "left": _unknown(cell.unpredicted) if left is None else number_cell(left, whole_seconds),
        "preempted": cell.preemptions or None,
        "job": cell.job[:8],
        "note": " ".join((*(["Being preempted."] if cell.preempting else ()), cell.unusual)).strip(),
    }


def reservation_rows(queue: QueueView) -> list[dict[str, object]]:
    """List the reservations, the first to end first."""
    entries = sorted(queue.reservations, key=lambda one: (one.ends_s, one.name))
    return [_reservation_row(entry, queue.now) for entry in entries if entry.ends_s > queue.now]


def _reservation_row(entry: CalendarReservation, now: float) -> dict[str, object]:
    waits_s, left_s = max(0.0, entry.begins_s - now), entry.ends_s - now
    return {
        "id": entry.name,
        "name": entry.name,
        "devices": ", ".join(sorted(entry.nodes)),
        "accounts": ", ".join(sorted(entry.accounts)),
        "begins": number_cell(waits_s, lambda wait_s: whole_seconds(wait_s) if wait_s else "has begun"),
        "ends": number_cell(left_s, whole_seconds),
    }


def _priority_text(cell: WaitingJob | RunningJob) -> str:
    """Return the priority, with the class of service where there is one: ``normal, best effort``."""
    return ", ".join(filter(None, (cell.priority, cell.qos))).lower().replace("_", " ")


def queue_sentence(queue: QueueView) -> str:
    """Summarise the queue: how many cells are pending, and whether the scheduler is alive."""
    waiting, running = queue.waiting_count, len(queue.running)
    cells = "pending cell" if waiting == 1 else "pending cells"
    summary = f"{waiting} {cells}, {running} running; policy {queue.policy}."
    if queue.decisions is not None:
        p99 = format_seconds(queue.decisions.p99_s)
        summary += f" A decision takes {format_seconds(queue.decisions.p50_s)} (99 % below {p99})."
    error = queue.estimate_error
    if error is not None:
        summary += (
            f" Starts were predicted to within {format_seconds(error.median_s)} (median of {error.count})."
        )
    return summary


def stall_sentence(stall: StallView, now: float) -> str:
    waited = format_seconds(max(0.0, now - stall.since_s))
    return (
        f"{stall.device} has idled for {waited} though cell {stall.job[:8]} could run there, and nothing is "
        f"under way that would let it: {stall.reason}"
    )


def fairness_sentence(queue: QueueView) -> str:
    if queue.jain is None:
        return "Nothing has been used yet. Usage counts for a week, less and less."
    return (
        f"Jain’s index of what was used per weight in the last week is {queue.jain:.2f}; 1 is even, and "
        "an account with little demand lowers it. "
        "The account with the least usage per weight is next."
    )
