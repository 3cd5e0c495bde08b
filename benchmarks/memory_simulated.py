"""Session memory under a simulated clock: the live pool's own policy object, on a device with an H200's
numbers, beside what others do.

A *wake-up* is from the wish to compute until the session's state is on the device and the turn has its memory
grant. Its *floor* is the time that copying the session of the 99th percentile takes at least. Killed sessions
count as infinite wake-ups, printed as ``never``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure, skipped
from djinn_lab.memory import POLICIES
from djinn_lab.simulator.memory import (
    AgentWorkload,
    DeviceParameters,
    RunFigures,
    Workload,
    load_parameters,
    simulate,
)
from djinn_lab.simulator.traces.agents import TRACES, oversubscribed
from djinn_lab.simulator.traces.lines import NoTraces, traces_folder

NAME = "memory-simulated"
SEED = 1
BASELINES = ("keep_all", "recompute", "lru_write_back", "lru_write_through", "eager_jit", "oracle")
ABLATIONS = ("default_no_prefetch", "default_no_ranking", "default_no_write_through", "default_no_lease")
"""Policies without one part of ours; other parts make a difference past capacity alone."""
LIVE = 110
"""Sessions of 1.7 GB at once: 1.5 times what the device holds."""
OVERSUBSCRIBED = AgentWorkload(name=f"{LIVE} live, 1.5x the device", sessions=LIVE, live=LIVE, turns=11)


def _variant(name: str, **changes: Any) -> AgentWorkload:
    return AgentWorkload(**{"sessions": LIVE, "live": LIVE, "turns": 11, **changes, "name": name})


OTHERS: tuple[tuple[AgentWorkload, tuple[str, ...]], ...] = (
    (_variant("80 live at once", sessions=80, live=80, turns=14), BASELINES),
    (_variant("Poisson 0.2/s, 80 agents", sessions=80, shape="open", turns=14), ("keep_all",)),
    (_variant("lognormal gaps, sigma 1.5", gap_sigma=1.5), ("lru_write_through", "oracle")),
    (_variant("estimates x0.3", estimate_bias=0.3), ("eager_jit",)),
    (_variant("estimates x3", estimate_bias=3.0), ("eager_jit",)),
    (_variant("no estimates", announced=0.0), ("lru_write_through",)),
    (_variant("all wake at once", together_s=30.0), ("lru_write_through",)),
    (_variant("signals twice and out of order", chaos=True), ()),
    (_variant("sessions killed while loading", dying=0.3), ()),
    (_variant("overload, 120", sessions=120, live=120, turns=10, within_s=60.0), ("lru_write_through",)),
    (
        _variant("overload, 160", sessions=160, live=160, turns=10, within_s=60.0),
        ("oracle", "default_no_admission"),
    ),
)
"""Workloads, with the baselines beside ours."""
CAPACITY_KEEP_ALL = (64, 68, 72, 76, 80)
CAPACITY_OURS = (136, 140, 144)
CAPACITY_TURNS = 10
TRACE_SIZES = {"claude_code": (80, 100), "mooncake": (80, 520), "lmcache_agent": (69, 69)}
"""Sessions at once, and in total."""
METRICS: tuple[tuple[str, str, float | None], ...] = (
    ("p99_ratio", "x", 2.0),
    ("wake_p50_s", "s", 0.0),
    ("miss_rate", "share", 0.15),
    ("useless_swaps", "share", 0.2),
    ("killed", "sessions", 0.0),
    ("first_token_p99_s", "s", None),
)
"""Of each workload: unit, and the upper limit that M7 sets."""


def measure(bench: Bench) -> list[Figure]:
    parameters = load_parameters("h200")
    if bench.quick:
        few = AgentWorkload(name="quick", sessions=30, live=30, turns=3)
        small = replace(parameters, memory_bytes=32 * 10**9, host_bytes=32 * 10**9)
        return _compare(few.name, few.workload(SEED), small, ("lru_write_through",))
    found = _compare(OVERSUBSCRIBED.name, OVERSUBSCRIBED.workload(SEED), parameters, (*BASELINES, *ABLATIONS))
    for agents, others in OTHERS:
        found += _compare(agents.name, agents.workload(SEED), parameters, others)
    full = replace(parameters, host_bytes=parameters.memory_bytes // 4)
    scarce = _variant("a host of a quarter of the device", within_s=60.0)
    found += _compare(scarce.name, scarce.workload(SEED), full, ("lru_write_back", "default_recompute"))
    return [*found, _capacity(parameters), *_traces(parameters)]


def _compare(
    name: str, workload: Workload, parameters: DeviceParameters, others: Sequence[str]
) -> list[Figure]:
    """One figure a metric, with every policy's value in it; the first has all that was counted."""
    runs = {policy: simulate(POLICIES[policy], workload, parameters, SEED) for policy in ("default", *others)}
    facts = {policy: _facts(run) for policy, run in runs.items()}
    about = {"device": parameters.name, "numbers": parameters.source, "wake_ups": runs["default"].n}
    figures = []
    for metric, unit, limit in METRICS:
        values = {policy: float(found[metric]) for policy, found in facts.items()}
        taken = {
            OURS if policy == "default" else policy: [v] for policy, v in values.items() if math.isfinite(v)
        }
        shown = {policy: samples for policy, samples in taken.items() if samples[0] > 0 or policy == OURS}
        goals = [Goal(limit)] if limit is not None else []
        title = f"{name}: {metric.replace('_', ' ')}"
        if OURS not in shown:
            figures.append(skipped(NAME, title, unit, "sessions of ours were killed: never"))
            continue
        figures.append(figure(NAME, title, unit, shown, goals, **about, values=_plain(values)))
    figures[0].facts["policies"] = _plain(facts)
    return figures


def _facts(run: RunFigures) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(run),
        "p99_ratio": run.p99_ratio if not math.isnan(run.p99_ratio) else 0.0,
        "miss_rate": 1.0 - run.hit_rate,
        "useless_swaps": 0.0 if run.useful_swaps is None else 1.0 - run.useful_swaps,
    }


def _plain(tree: Any) -> Any:
    """Infinities as words, which JSON has no number for."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return "never" if isinstance(tree, float) and not math.isfinite(tree) else tree


def _capacity(parameters: DeviceParameters) -> Figure:
    """Measure how many sessions live at once with none killed and with wake-ups within twice the floor."""
    kept = max((n for n in CAPACITY_KEEP_ALL if _fits("keep_all", n, parameters)), default=0)
    ours = max((n for n in CAPACITY_OURS if _fits("default", n, parameters)), default=0)
    taken = {OURS: [kept / ours if ours else math.inf]}
    title = "live sessions of keep-all over ours, at the same memory, none killed or waiting for admission"
    return figure(NAME, title, "x", taken, [Goal(1 / 1.9)], keep_all=kept, ours=ours)


def _fits(policy: str, live: int, parameters: DeviceParameters) -> bool:
    agents = AgentWorkload(name=f"{live} live", sessions=live, live=live, turns=CAPACITY_TURNS, within_s=20.0)
    run = simulate(POLICIES[policy], agents.workload(SEED), parameters, SEED)
    ratio = 0.0 if math.isnan(run.p99_ratio) else run.p99_ratio
    return run.killed == 0 and run.admission_waits == 0 and run.live_max == live and ratio <= 2.0


def _traces(parameters: DeviceParameters) -> list[Figure]:
    found: list[Figure] = []
    for name, load in TRACES.items():
        live, sessions = TRACE_SIZES[name]
        title = f"trace {name}, {live} live, 1.5x the device"
        try:
            workload = load(traces_folder(), live, sessions, SEED)
        except NoTraces as error:
            found.append(skipped(NAME, title, "x", str(error)))
            continue
        sized = oversubscribed(parameters, workload, 1.5)
        found += _compare(title, workload, sized, ("lru_write_through", "oracle"))
    return found
