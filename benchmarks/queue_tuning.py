"""Does it pay to choose the queue's parameters on a team's own history? The policy that is best on the
earlier half of a trace, beside ours as it is, on the later half."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, figure, skipped
from benchmarks.queue_simulated import itp_pools
from djinn_lab.simulator.queue import QueueSettings, Trace
from djinn_lab.simulator.queue.tuning import PolicyComparison, Tuning, tune
from djinn_lab.simulator.traces.catalog import open_trace
from djinn_lab.simulator.traces.lines import NoTraces
from djinn_lab.simulator.traces.synthetic import Synthetic

NAME = "queue-tuning"
JOBS, JOBS_QUICK = 8_000, 60
SETTINGS = QueueSettings(estimates="history")


def measure(bench: Bench) -> list[Figure]:
    jobs = bench.rounds(JOBS, JOBS_QUICK)
    opened = {
        "synthetic": lambda: Synthetic().trace(),
        "Philly, five pools": lambda: open_trace("philly-contended"),
        "ITP, four pools": itp_pools,
    }
    found: list[Figure] = []
    for name, trace in opened.items():
        try:
            found += _figures(name, tune(_first(trace(), jobs), settings=SETTINGS))
        except NoTraces as error:
            found.append(skipped(NAME, name, "s", str(error)))
    return found


def _first(trace: Trace, jobs: int) -> Trace:
    return replace(trace, jobs=tuple(islice(trace.jobs, jobs)))


def _figures(name: str, found: Tuning) -> list[Figure]:
    early = _figure(f"{name}: mean completion of the jobs it was chosen on", found.early)
    late = _figure(f"{name}: mean completion of later jobs", found.late)
    late.facts.update(changed=found.changed, tried=found.tried, kept=found.worth_it)
    return [early, late]


def _figure(title: str, sides: PolicyComparison) -> Figure:
    """The tuned policy is the contender; ours as it is, the baseline."""
    before, after = sides.before, sides.after
    taken = {OURS: [after.jct_mean_s], "untuned": [before.jct_mean_s]}
    return figure(NAME, title, "s", taken, jobs=before.jobs, jain_tuned=after.jain, jain_untuned=before.jain)
