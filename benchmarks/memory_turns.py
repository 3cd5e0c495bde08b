"""Turns of many agents beside those with the least recently used sessions written through, live: a cleverer
policy must not be paid for in turns or copies."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.agent_tape import TOKEN_BYTES, Shape, Tape, record_tape
from benchmarks.agent_workloads import EIGHTY, OTHERS, TURNS, Workload
from benchmarks.bench import Bench
from benchmarks.figures import OURS, Figure, Goal, figure
from benchmarks.memory_live import LINK_BYTES_PER_S, SEED, Run, quantile, run_agents, wakes_s

NAME = "memory-turns"
BASELINE = "lru_write_through"
ROUNDS = 3
"""Runs of each policy in alternation: one run of the same policy differs from the next by a fifth."""
FIT_AGENTS = 10
"""Number of agents whose sessions all fit."""
OVERLOAD = next(workload for workload, _ in OTHERS if workload.agents == 120)


def measure(bench: Bench) -> list[Figure]:
    shape = Shape(64, 8, 2, 3) if bench.quick else TURNS
    tape = record_tape(shape)
    workloads = [EIGHTY] if bench.quick else [EIGHTY, OVERLOAD]
    figures = [one for workload in workloads for one in _beside(bench, tape, workload)]
    return figures if bench.quick else [*figures, _all_fit(tape)]


def _beside(bench: Bench, tape: Tape, workload: Workload) -> list[Figure]:
    """A minute for each policy and round; a round is a sample."""
    if bench.quick:
        workload = replace(workload, think_s=0.2)
    taken: dict[str, dict[str, list[float]]] = {}
    unfinished = dict.fromkeys(("default", BASELINE), 0)
    plans = workload.plans(tape.shape, SEED, bench.quick)
    pair = ("default", BASELINE)
    for number in range(1 if bench.quick else ROUNDS):
        for policy in pair if number % 2 == 0 else pair[::-1]:
            run = run_agents(policy, tape, plans)
            unfinished[policy] += sum(len(turns) < tape.shape.turns for turns in run.turns)
            for metric, value in _metrics(run, wakes_s(run, plans), tape.shape).items():
                contender = OURS if policy == "default" else policy
                taken.setdefault(metric, {}).setdefault(contender, []).append(value)
    limits = {"copied": 1.2}
    facts = {"agents": len(plans), "turns": tape.shape.turns, "unfinished": unfinished}
    return [
        figure(
            NAME,
            f"{workload.name}: {metric}",
            "bytes" if metric == "copied" else "s",
            samples,
            [Goal(limits.get(metric, 1.0), baseline=BASELINE)],
            **facts,
        )
        for metric, samples in taken.items()
        if min(samples[BASELINE]) > 0
    ]


def _metrics(run: Run, wakes: list[float], shape: Shape) -> dict[str, float]:
    """Wake-ups that never came are given the longest that a run may take."""
    turns = sorted(turn.seconds for turns in run.turns for turn in turns)
    counters = run.memory.counters
    never_s = shape.context * TOKEN_BYTES / LINK_BYTES_PER_S * 1e3
    return {
        "turn p50": quantile(turns, 0.5),
        "turn p99": quantile(turns, 0.99),
        "wake-up p99": min(never_s, quantile(wakes, 0.99)),
        "copied": float(counters.bytes_out + counters.bytes_in),
    }


def _all_fit(tape: Tape) -> Figure:
    """Count the evictions of agents that all fit the devices: none are needed."""
    plans = replace(EIGHTY, agents=FIT_AGENTS).plans(tape.shape, SEED, quick=False)
    run = run_agents("default", tape, plans, held=2 * len(plans))
    evictions = float(run.memory.counters.evictions)
    name, values = f"{len(plans)} agents that all fit: evictions", {"default": evictions}
    return figure(NAME, name, "evictions", {OURS: [evictions]}, [Goal(0.0)], agents=len(plans), values=values)
