"""``djinn-lab queue``, ``why``, ``policy``, ``share``, ``cordon``, ``uncordon``, ``device``, ``preempt``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from djinn_lab.cli.options import AsJson, JobId, checked_priority
from djinn_lab.cli.output import print_json, print_line, print_table
from djinn_lab.cli.reservations import HEADINGS as RESERVATION_HEADINGS
from djinn_lab.cli.reservations import reservation_row
from djinn_lab.config.fields import did_you_mean
from djinn_lab.errors import OptionError
from djinn_lab.units import SHORT_ID_CHARS, format_seconds

if TYPE_CHECKING:
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.jobs.fairness import AccountView, Limits
    from djinn_lab.protocol.rest.queue import QueueView, RunningJob, WaitingJob, WhatIfAnswer, WhyAnswer
    from djinn_lab.protocol.rest.status import DeviceView

ACCOUNTS_MAX = 100
"""A longer table takes most of the command's time to draw."""
DeviceName = Annotated[str, typer.Argument(help="The device, e.g. cuda:0.")]


def show_queue(as_json: AsJson = False) -> None:
    """Show pending jobs and why they wait, running jobs, and the usage of every account."""
    from djinn_lab.client.rest import PoolClient

    found = PoolClient.find().queue()
    if as_json:
        print_json(found)
        return
    now = found.now
    print_line(f"Policy {found.policy}. {found.waiting_count} waiting, {len(found.running)} running.")
    for device in found.cordoned:
        again = f"djinn-lab uncordon {device}"
        print_line(f"{device} is cordoned: no cell starts there. Let it serve again with: {again}")
    if found.waiting:
        columns = ("", "job", "user", "priority", "wait", "why")
        print_table("Waiting", columns, [_waiting_row(job) for job in found.waiting])
    if found.running:
        headings = ("job", "user", "priority", "device", "run time", "preempted")
        print_table("Running", headings, [_running_row(job, now) for job in found.running])
    if found.reservations:
        rows = [reservation_row(one) for one in found.reservations]
        print_table("Reservations", RESERVATION_HEADINGS, rows)
    if found.accounts:
        titles = ("account", "share", "usage", "rank", "limits")
        shown = most_used(found.accounts)
        print_table("Accounts", titles, [_account_row(found, account) for account in shown])
        if len(shown) < len(found.accounts):
            more = len(found.accounts) - len(shown)
            print_line(f"{more:,} accounts that used less are not shown; djinn-lab queue --json lists all.")


def why_job(
    job: JobId,
    priority: Annotated[str | None, typer.Option(help="When would it start with this priority?")] = None,
    gang: Annotated[
        int | None, typer.Option(min=1, help="When would it start with a gang of so many devices?")
    ] = None,
    anywhere: Annotated[bool, typer.Option(help="When would it start if any device would do?")] = False,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits, when it will start, and what would help."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    if priority is None and gang is None and not anywhere:
        found: WhyAnswer | WhatIfAnswer = client.why(job)
    else:
        if priority is not None:
            priority = checked_priority(priority)
        found = client.what_if(job, priority=priority, members=gang, anywhere=anywhere or None)
    if as_json:
        print_json(found)
    else:
        print_line(found.sentence)


def queue_policy(
    policy: Annotated[
        str | None, typer.Argument(help="The name of a policy, or a file that simulate --tune wrote.")
    ] = None,
) -> None:
    """Show the queue's policy, or change it until the pool stops (admins)."""
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.jobs.decision import POLICIES
    from djinn_lab.pool.policy_file import read_policy

    client = PoolClient.find()
    if policy is not None:
        client.set_policy(read_policy(policy))
    known = ", ".join(POLICIES)
    print_line(f"The queue decides by the policy {client.queue().policy}. There are {known}.")


def set_share(
    account: Annotated[str, typer.Argument(help="A user, project or organisation, e.g. vision/train/ann.")],
    weight: Annotated[float | None, typer.Option(help="Share relative to its siblings. Default: 1.")] = None,
    devices: Annotated[float | None, typer.Option(help="Limit of devices at once.")] = None,
    devices_soft: Annotated[
        float | None, typer.Option(help="Soft limit: more devices only while no other account wants them.")
    ] = None,
    guaranteed: Annotated[
        float | None,
        typer.Option(help="Guaranteed devices, for which jobs of others are preempted; 0 for none."),
    ] = None,
    device_seconds: Annotated[
        float | None, typer.Option(help="Limit of device-seconds in a week (decaying).")
    ] = None,
    queued: Annotated[int | None, typer.Option(min=0, help="Limit of cells that wait at once.")] = None,
    best_priority: Annotated[
        str | None, typer.Option(help="The highest priority that it may ask for.")
    ] = None,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Lift all limits first.")] = False,
    new: Annotated[bool, typer.Option("--new", help="The account has no user yet.")] = False,
) -> None:
    """Change the weight and the limits of an account while the pool runs (admins)."""
    from djinn_lab.client.rest import PoolClient

    for name, value in (
        *(("--weight", weight), ("--devices", devices), ("--devices-soft", devices_soft)),
        *(("--guaranteed", guaranteed), ("--device-seconds", device_seconds)),
    ):
        _expect_number(name, value)
    client = PoolClient.find()
    limits = _limits(devices, devices_soft, guaranteed, device_seconds, queued, best_priority)
    if weight is None and not limits and not no_limits:
        raise OptionError("Nothing to change.", "Give --weight or a limit; see djinn-lab share --help.")
    if not new:
        _expect_account(client, account)
    new_limits = _new_limits(client, account, limits, no_limits)
    changed = client.set_targets(account, weight=weight, limits=new_limits)
    print_line(f"Account {account}: a share of {changed.share:.1%}; {_limits_text(changed)}.")
    if changed.overcommitted:
        print_line(changed.overcommitted)


def _expect_number(name: str, value: float | None) -> None:
    """Raises OptionError for what JSON has no number for, which would count as left out, and below 0."""
    if value is not None and not 0 <= value < math.inf:
        raise OptionError(f"{name} {value:g} is no number from 0 on.", "Write one such as 2 or 0.5.")


def _expect_account(client: PoolClient, account: str) -> None:
    """Raises OptionError for an account that no user is in: it would only make the shares of others less."""
    paths = [*(user.account for user in client.users()), *(one.account for one in client.queue().accounts)]
    known = sorted({above for path in paths for above in accumulate(path.split("/"), "{}/{}".format)})
    if account not in known:
        hint = did_you_mean(account, known)
        raise OptionError(
            f"No user is in an account {account!r}{hint or '.'}",
            f"There are {', '.join(known)}. With --new it is set before its first user comes.",
        )


def cordon_device(
    device: DeviceName,
    drain: Annotated[
        bool, typer.Option(help="Preempt what runs there; it resumes on other devices.")
    ] = False,
) -> None:
    """Start nothing new on a device (operators)."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    running = sum(job.device == device for job in client.queue().running)
    client.cordon(device, drain)
    sessions = sum(session.device == device for session in client.sessions())
    print_line(f"{device} is {'drained' if drain else 'cordoned'}: no cell starts there.")
    if drain:
        print_line(f"Running cells preempted after their current op, to resume on another device: {running}.")
    else:
        print_line(f"Running cells that end there first (--drain preempts them): {running}.")
    print_line(f"Sessions bound to it, which move with their next cell or part of a cell: {sessions}.")
    print_line(f"Let it serve again with: djinn-lab uncordon {device}")


def uncordon_device(device: DeviceName) -> None:
    """Let a cordoned device serve again (operators)."""
    from djinn_lab.client.rest import PoolClient

    PoolClient.find().uncordon(device)
    print_line(f"{device} serves again.")


def describe_device(
    device: DeviceName,
    label: Annotated[
        list[str] | None, typer.Option(help="key=value that cells can ask for with --target; repeatable.")
    ] = None,
    taint: Annotated[
        list[str] | None, typer.Option(help="Only cells with --tolerate TAINT start there; repeatable.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="Price of a device-hour; cheaper devices are used first.")
    ] = None,
    watts: Annotated[float | None, typer.Option(min=0, help="Watts that it draws when it is busy.")] = None,
    clear: Annotated[bool, typer.Option(help="Remove what was set before.")] = False,
) -> None:
    """Show or set a device's labels, taints, price and watts (operators)."""
    from djinn_lab.client.rest import PoolClient

    _expect_number("--price", price)
    _expect_number("--watts", watts)
    client = PoolClient.find()
    known = _device(client.status().devices, device)
    if label or taint or price is not None or watts is not None or clear:
        before = [] if clear else [one for one in known.labels if one not in known.own_labels]
        given = {one.partition("=")[0] for one in label or ()}
        labels = [*(one for one in before if one.partition("=")[0] not in given), *(label or ())]
        taints = dict.fromkeys((*(() if clear else known.taints), *(taint or ())))
        kept_price, kept_watts = (0.0, None) if clear else (known.price, known.watts)
        client.describe_device(
            device,
            labels,
            list(taints),
            kept_price if price is None else price,
            kept_watts if watts is None else watts,
        )
        known = _device(client.status().devices, device)
    tainted = f"; taints {', '.join(known.taints)}" if known.taints else ""
    costs = f"; {known.price:g} an hour" if known.price else ""
    draws = f"; draws {known.watts:g} W when busy" if known.watts is not None else ""
    print_line(f"{device}: {', '.join(known.labels)}{tainted}{costs}{draws}.")


def _device(devices: Sequence[DeviceView], name: str) -> DeviceView:
    for device in devices:
        if device.device == name:
            return device
    known = ", ".join(device.device for device in devices)
    raise OptionError(f"There is no device {name!r}.", f"There are {known}.")


def preempt_job(job: JobId) -> None:
    """Preempt a running job between two ops; it resumes later, with nothing lost."""
    from djinn_lab.client.rest import PoolClient

    PoolClient.find().preempt(job)
    print_line(f"Job {job} is preempted after its current op.")


def most_used(accounts: Sequence[AccountView]) -> list[AccountView]:
    """Return the accounts to show, in the order of the tree."""
    by_use = sorted(accounts, key=lambda one: -one.used.device_s)
    kept = {one.account for one in by_use[:ACCOUNTS_MAX]}
    return [one for one in accounts if one.account in kept]


def _new_limits(
    client: PoolClient, account: str, changed: dict[str, object], no_limits: bool
) -> Limits | None:
    """Return the account's limits with the changed ones; None where they stay as they are."""
    from djinn_lab.jobs.fairness import Limits

    if not changed and not no_limits:
        return None
    known = {} if no_limits else {one.account: one.limits for one in client.queue().accounts}
    return msgspec.structs.replace(known.get(account, Limits()), **changed)


def _limits(
    devices: float | None,
    devices_soft: float | None,
    guaranteed: float | None,
    device_seconds: float | None,
    queued: int | None,
    best_priority: str | None,
) -> dict[str, object]:
    from djinn_lab.jobs import RANKS

    rank = None if best_priority is None else RANKS[checked_priority(best_priority)]
    given = {
        "devices_max": devices,
        "devices_soft": devices_soft,
        "devices_guaranteed": guaranteed,
        "device_s_max": device_seconds,
        "queued_max": queued,
        "rank_min": rank,
    }
    return {name: value for name, value in given.items() if value is not None}


def _waiting_row(job: WaitingJob) -> tuple[str, ...]:
    return (
        "" if job.position is None else str(job.position),
        job.job[:SHORT_ID_CHARS],
        job.user,
        _priority(job),
        format_seconds(job.waited_s),
        job.sentence,
    )


def _running_row(job: RunningJob, now: float) -> tuple[str, ...]:
    return (
        job.job[:SHORT_ID_CHARS],
        job.user,
        _priority(job),
        job.device or "",
        "" if job.since is None else format_seconds(job.run_s(now)),
        str(job.preemptions or ""),
    )


def _priority(job: WaitingJob | RunningJob) -> str:
    """Show the priority, with the class of service where an account is guaranteed devices."""
    return f"{job.priority} {job.qos}" if job.qos else job.priority


def _account_row(queue: QueueView, account: AccountView) -> tuple[str, ...]:
    return (
        account.account,
        f"{account.share:.1%}",
        f"{queue.usage(account.account):.1%}",
        "" if account.rank is None else str(account.rank),
        _limits_text(account),
    )


def _limits_text(account: AccountView) -> str:
    limits = account.limits
    shown = [
        f"{name.replace('_', ' ')} {value:g}"
        for name, value in msgspec.structs.asdict(limits).items()
        if value is not None and name != "rank_min"
    ]
    if limits.rank_min:
        from djinn_lab.jobs import RANKS

        shown.append(f"at best {list(RANKS)[limits.rank_min]}")
    return ", ".join(shown) or "no limits"
