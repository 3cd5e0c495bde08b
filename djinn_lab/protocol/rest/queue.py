"""``/v1/queue``, ``/v1/jobs/JOB/why`` and ``/v1/jobs/JOB/what-if``: which jobs wait and why, which run, what
every account used. Also what operators set: targets, devices, reservations, the policy."""

from __future__ import annotations

import math

import msgspec

from djinn_lab.jobs.decision import CalendarReservation, Explanation, JobQos, QueuePolicy
from djinn_lab.jobs.fairness import AccountView, Limits
from djinn_lab.jobs.start_forecasts import StartForecastError


class AccountTargets(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Set targets of an account; what is left out stays. ``limits`` replace all limits."""

    weight: float | None = None
    limits: Limits | None = None
    min_runtime_s: float | None = None


class DeviceCordon(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cordon a device. ``drain``: preempt what runs, to resume on other devices."""

    drain: bool = False


class DeviceDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Replace a device's description. ``price``: of a device-hour. ``watts``: that it draws when busy, None
    for unknown. Raises ValueError for a price or watts that are not finite."""

    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    price: float = 0.0
    watts: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.price) or not math.isfinite(self.watts or 0.0):
            what = f"a price of {self.price} and a draw of {self.watts} watts"
            raise ValueError(f"A device cannot have {what}: both must be finite.")


class NewReservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Reserve devices. Times in seconds since the epoch; ``begins_at`` None: now. ``accounts``: those that
    may use the devices, with all below them."""

    devices: tuple[str, ...]
    ends_at: float
    accounts: tuple[str, ...]
    begins_at: float | None = None


class PolicyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name a queue policy, or give all its fields."""

    policy: str | QueuePolicy


class DecisionTimes(msgspec.Struct, frozen=True):
    """Say how long the latest ``count`` events took to handle, decisions included."""

    count: int
    p50_s: float
    p99_s: float


class WaitingJob(msgspec.Struct, frozen=True):
    """Show a pending job. ``reason``: a code of :class:`djinn_lab.jobs.decision.Reason`, or the job's state
    where it does not contend; ``why``: the reason for people, ``sentence``: with the predicted start.
    ``expected_at`` comes with ``QueueView.estimate_error`` only. ``qos``: of service (a
    :class:`~djinn_lab.jobs.decision.QosClass`), where an account is guaranteed devices and the job
    contends. ``since``: when it last became pending; ``waited_s``: seconds since its submission in which it
    did not run, preempted ones included. ``unpredicted``: in a few words, why ``expected_at`` is None."""

    job: str
    user: str = ""
    account: str = ""
    priority: str = ""
    state: str = ""
    device: str | None = None
    position: int | None = None
    reason: str = ""
    sentence: str = ""
    why: str = ""
    since: float = 0.0
    expected_at: float | None = None
    qos: str = ""
    unpredicted: str = ""
    waited_s: float = 0.0


class RunningJob(msgspec.Struct, frozen=True):
    """Show a running job. ``ends_at``: expected, None when unknown, and ``unpredicted`` says why, in a few
    words. ``preempting``: it was asked to stop
    between two ops. ``members``: of a gang, the other devices that it holds. ``unusual``: a sentence where
    it runs much longer than predicted. ``qos``: as in :class:`WaitingJob`. ``since``: when it last started;
    ``ran_s``: seconds that devices ran it before."""

    job: str
    user: str = ""
    account: str = ""
    priority: str = ""
    device: str | None = None
    since: float | None = None
    ends_at: float | None = None
    preempting: bool = False
    preemptions: int = 0
    members: tuple[str, ...] = ()
    unusual: str = ""
    qos: str = ""
    ran_s: float = 0.0
    unpredicted: str = ""

    def run_s(self, now: float) -> float:
        """Return the seconds for which devices have run it by then."""
        return self.ran_s + (0.0 if self.since is None else max(0.0, now - self.since))


class StallView(msgspec.Struct, frozen=True):
    """Show work that waits without a cause: ``job`` could run on ``device``, and nothing is under way that
    would let it. ``since_s``: when something last happened. ``reason``: what the job waits for."""

    since_s: float
    job: str
    device: str
    reason: str


class QueueView(msgspec.Struct, frozen=True):
    """Show the queue. ``waiting``: the first of ``waiting_count``. ``decided_at``: when a job last was
    started or preempted. ``jain``: Jain's index of the dominant shares over weights of all leaf accounts, 1
    for equal. ``cordoned``: devices. ``stall``: work that waits though a device idles and nothing is under
    way, a defect of the pool."""

    now: float
    policy: str = ""
    policy_version: int = 0
    decided_at: float | None = None
    decisions: DecisionTimes | None = None
    event_loop_lag_s: float = 0.0
    waiting_count: int = 0
    waiting: tuple[WaitingJob, ...] = ()
    running: tuple[RunningJob, ...] = ()
    accounts: tuple[AccountView, ...] = ()
    reservations: tuple[CalendarReservation, ...] = ()
    cordoned: tuple[str, ...] = ()
    jain: float | None = None
    estimate_error: StartForecastError | None = None
    stall: StallView | None = None

    def device_s(self) -> dict[str, float]:
        """Sum the device-seconds of every leaf account, with what runs now, on all devices of a gang. What a
        running job used before it last started is in its account already."""
        used = {one.account: one.used.device_s for one in self.accounts if is_leaf(one)}
        for job in self.running:
            if job.account in used and job.since is not None:
                used[job.account] += max(0.0, self.now - job.since) * (1 + len(job.members))
        return used

    def leaves(self, account: str) -> list[AccountView]:
        """Return the leaf accounts of an account: itself, or all below it."""
        known = (one for one in self.accounts if is_leaf(one))
        return [one for one in known if one.account == account or one.account.startswith(f"{account}/")]

    def usage(self, account: str) -> float:
        """Return the part that an account has of what all accounts used lately, from 0 to 1."""
        total = sum(one.dominant for one in self.accounts if is_leaf(one))
        return sum(one.dominant for one in self.leaves(account)) / total if total else 0.0

    def find(self, job: str) -> WaitingJob | None:
        return next((waiting for waiting in self.waiting if waiting.job == job), None)


def is_leaf(account: AccountView) -> bool:
    """Return whether cells are charged to this account."""
    return account.rank is not None


class WhyAnswer(msgspec.Struct, frozen=True):
    """Explain where a job is. ``explanation``: of a job that contends for a device. ``snapshot``: digest of
    what it was computed from. ``qos``: of service, of a job that contends or runs where an account is
    guaranteed devices."""

    job: str
    state: str
    sentence: str
    explanation: Explanation | None = None
    snapshot: str | None = None
    qos: JobQos | None = None


class WhatIfAnswer(msgspec.Struct, frozen=True):
    """Say when a waiting job starts, and when it would with the changes asked about: seconds from now, None
    where it would not start by itself."""

    job: str
    starts_in_s: float | None
    changed_starts_in_s: float | None
    refused: str | None
    sentence: str
    estimate_error: StartForecastError | None
