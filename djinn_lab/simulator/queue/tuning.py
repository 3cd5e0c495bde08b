"""Parameters of a policy that suit a pool's own jobs better, if there are any.

Chosen on the earlier part of a trace by coordinate descent: one parameter at a time, whatever it is best at
is kept, until a round changes nothing. Judged on the later part, which the choice has not seen: only a policy
that wins there, too, is worth having, and everything else is fitted to the past."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from djinn_lab.jobs.decision import DEFAULT, QueuePolicy
from djinn_lab.simulator.queue.figures import QueueFigures
from djinn_lab.simulator.queue.run import Nodes, simulate_queue
from djinn_lab.simulator.queue.settings import QueueSettings
from djinn_lab.simulator.queue.workload import Trace

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "within": ("work", "remaining", "service", "arrival"),
    "backfill": ("starving", "always", "easy"),
    "shorter_factor": (1.0, 1.5, 3.0),
    "park_factor": (1.0, 4.0, 16.0),
    "fair_margin_s": (5.0, 30.0, 300.0, 3600.0),
    "age_step_s": (150.0, 600.0, 3600.0, 86_400.0),
    "age_stretch": (5.0, 50.0, 500.0),
    "reservations": (1, 2, 8),
}
"""What is tried for each parameter."""
ROUNDS_MAX = 3
GAIN_MIN = 0.01
"""Below one percent a difference is nothing to change a policy for."""
STEP_MIN = 0.002
"""What changing one parameter has to bring on the earlier part."""
JAIN_LOSS_MAX = 0.002
"""A quicker policy that is less even than this is none of ours."""
EARLY_PART = 0.5

Heard = Callable[[int, QueuePolicy, QueueFigures], None]


class PolicyComparison(msgspec.Struct, frozen=True):
    """Figures of the given policy and of the tuned one, on the same jobs."""

    before: QueueFigures
    after: QueueFigures

    @property
    def gain(self) -> float:
        """Return by which part the mean completion time is shorter."""
        return 1 - self.after.jct_mean_s / self.before.jct_mean_s if self.before.jct_mean_s else 0.0

    @property
    def wins(self) -> bool:
        """Return whether the tuned policy is faster by :data:`GAIN_MIN`, and about as even."""
        before, after = self.before.jain, self.after.jain
        even = before is None or after is None or after >= before - JAIN_LOSS_MAX
        return self.gain >= GAIN_MIN and even


class Tuning(msgspec.Struct, frozen=True):
    """The result of tuning; ``early``: the jobs that the parameters were chosen on; ``late``: those that they
    were judged on. ``tried``: policies that were simulated."""

    policy: QueuePolicy
    changed: dict[str, Any]
    early: PolicyComparison
    late: PolicyComparison
    tried: int

    @property
    def worth_it(self) -> bool:
        """Return whether the policy wins on jobs that it was not chosen on."""
        return bool(self.changed) and self.late.wins


def tune(
    trace: Trace,
    nodes: Nodes | None = None,
    policy: QueuePolicy = DEFAULT,
    settings: QueueSettings | None = None,
    heard: Heard = lambda number, policy, figures: None,
) -> Tuning:
    """Tune the policy on the earlier jobs and judge it on the later ones; ``heard`` is called with every
    policy that was tried. Raises ValueError for a trace of less than two jobs, or one that names no nodes."""
    settings = replace(settings or QueueSettings(), keep_jobs=0)
    early, late = halves(trace)
    tried: dict[QueuePolicy, QueueFigures] = {}

    def figures(candidate: QueuePolicy) -> QueueFigures:
        if candidate not in tried:
            tried[candidate] = simulate_queue(early, nodes, candidate, settings).figures
            heard(len(tried), candidate, tried[candidate])
        return tried[candidate]

    before = figures(policy)
    best = policy
    for _ in range(ROUNDS_MAX):
        round_began = best
        for name, values in CHOICES.items():
            found = min(
                (replace(best, **{name: value}) for value in values),
                key=lambda one: _cost(before, figures(one)),
            )
            if _cost(before, figures(found), STEP_MIN) < _cost(before, figures(best)):
                best = found
        if best == round_began:
            break
    changed = {name: getattr(best, name) for name in CHOICES if getattr(best, name) != getattr(policy, name)}
    tuned = replace(best, name=f"{policy.name}-tuned") if changed else best
    on_late = [simulate_queue(late, nodes, one, settings).figures for one in (policy, tuned)]
    return Tuning(
        tuned, changed, PolicyComparison(before, figures(best)), PolicyComparison(*on_late), len(tried)
    )


def halves(trace: Trace, part: float = EARLY_PART) -> tuple[Trace, Trace]:
    """Return the jobs that were submitted first, and the others."""
    jobs = tuple(trace.jobs)
    if len(jobs) < 2:
        raise ValueError(f"{trace.name} has too few jobs to choose on some and judge on others")
    cut = max(1, int(len(jobs) * part))
    return (
        replace(trace, name=f"{trace.name}, earlier", jobs=jobs[:cut]),
        replace(trace, name=f"{trace.name}, later", jobs=jobs[cut:]),
    )


def _cost(before: QueueFigures, after: QueueFigures, handicap: float = 0.0) -> tuple[bool, float]:
    """Policies that are less even or leave jobs come last; else the soonest completion is best."""
    uneven = before.jain is not None and after.jain is not None and after.jain < before.jain - JAIN_LOSS_MAX
    return uneven or after.unfinished > before.unfinished, after.jct_mean_s * (1 + handicap)
