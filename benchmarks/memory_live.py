"""Many idle sessions on little memory, live: real sessions of a real pool on CPU devices that hold half of
them.

A *wake-up* is from a turn's arrival at the pool until its session's state is on the device and the turn has
its memory grant; the wait for the device itself is apart. Its *floor* is the session's bytes over the link's
rate. Sessions that ran out of memory count as infinite wake-ups."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import msgspec

from benchmarks.agent_client import Agent, AgentFailed, Turn, upload
from benchmarks.agent_tape import TOKEN_BYTES, Shape, Tape, record_tape
from benchmarks.agent_workloads import EIGHTY, OTHERS, TURNS, Plan, Workload, oracle
from benchmarks.bench import START_TIMEOUT_S, Bench, own_runtime
from benchmarks.figures import OURS, Figure, Goal, figure
from djinn_lab.client.rest import PoolClient
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.rest.sessions import MemoryView
from djinn_lab.protocol.runtime_file import RuntimeInfo

NAME = "memory-live"
LINK_BYTES_PER_S = 200 * 10**6
DEVICES = 2
HELD = 40
"""Sessions that fit on the devices together, with the weights and a running turn beside them."""
WEIGHTS_BYTES = 16 * 2**20
WORKING_BYTES = 12 * 2**20
HOST_FACTOR = 2
BASELINES = ("keep_all", "lru_write_back", "lru_write_through", "eager_jit", "oracle")
METRICS: tuple[tuple[str, str, float | None], ...] = (
    ("turn_p99_s", "s", None),
    ("wake_p99_over_floor", "x", 2.0),
    ("wake_p50_s", "s", 0.0),
    ("miss_rate", "share", 0.15),
    ("useless_swaps", "share", 0.2),
    ("agents_that_did_not_finish", "agents", 0.0),
    ("different_outputs", "turns", 0.0),
)
"""Of the facts: unit, and M7's upper limit."""
SEED = 1


@dataclass
class Run:
    """One policy on one workload. ``turns[agent]``: those that ran."""

    turns: list[list[Turn]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    held: int = 0
    memory: MemoryView = field(default_factory=lambda: MemoryView(0.0))
    peak_bytes: int = 0
    peak_sessions: int = 0


def measure(bench: Bench) -> list[Figure]:
    shape = Shape(64, 8, 2, 3) if bench.quick else TURNS
    tape = record_tape(shape)
    undisturbed = _undisturbed(tape, bench.quick)
    if bench.quick:
        return _compare(bench, tape, replace(EIGHTY, think_s=0.2), undisturbed, ("lru_write_through",))
    figures = _compare(bench, tape, EIGHTY, undisturbed, BASELINES)
    for workload, others in OTHERS:
        figures += _compare(bench, tape, workload, undisturbed, others)
    return figures


def _compare(
    bench: Bench, tape: Tape, workload: Workload, undisturbed: Sequence[Sequence[str]], others: Sequence[str]
) -> list[Figure]:
    """One figure a metric, with every policy's value in it and everything else that was counted as facts."""
    plans = workload.plans(tape.shape, SEED, bench.quick)
    facts: dict[str, Any] = {}
    for policy in ("default", *others):
        run = run_agents(policy, tape, plans)
        facts[policy] = _facts(run, wakes_s(run, plans), tape.shape, undisturbed)
    about = {"agents": len(plans), "turns": tape.shape.turns, "wake_ups": facts["default"]["wake_ups"]}
    figures = []
    for metric, unit, limit in METRICS:
        values = {policy: float(found[metric]) for policy, found in facts.items()}
        taken = {OURS if policy == "default" else policy: [v] for policy, v in values.items() if isfinite(v)}
        baselines = {policy: samples for policy, samples in taken.items() if samples[0] > 0 or policy == OURS}
        if others and len(baselines) == 1:
            continue  # nothing to divide by; the values are among the first figure's facts
        goals = [Goal(limit)] if limit is not None else []
        name = f"{workload.name}: {metric.replace('_', ' ')}"
        figures.append(figure(NAME, name, unit, baselines, goals, **about, values=_plain(values)))
    figures[0].facts["policies"] = _plain(facts)
    return figures


def _plain(tree: Any) -> Any:
    """Infinities as words, which JSON has no number for."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return "never" if isinstance(tree, float) and not isfinite(tree) else tree


def run_agents(policy: str, tape: Tape, plans: Sequence[Plan], held: int | None = None) -> Run:
    """On a pool of its own. ``held``: sessions that fit on its devices together, None for about half."""
    said = [oracle(plan) for plan in plans] if policy == "oracle" else plans
    if held is None:
        held = HELD * len(plans) // 80 if len(plans) < 60 else HELD
    session_bytes = tape.shape.context * TOKEN_BYTES
    memory_bytes = WEIGHTS_BYTES + WORKING_BYTES + held * session_bytes // DEVICES
    with own_runtime():
        try:
            info = start_pool(
                devices=f"cpu:{DEVICES}",
                threads=1,
                memory_bytes=memory_bytes,
                host_bytes=HOST_FACTOR * memory_bytes,
                link_bytes_per_s=LINK_BYTES_PER_S,
                memory_policy=policy,
                wait_s=START_TIMEOUT_S,
            )
            return asyncio.run(_all_agents(info, tape, said))
        finally:
            stop_pool()


def _undisturbed(tape: Tape, quick: bool) -> list[list[str]]:
    """Return the results of every agent's turns with memory for all of them."""
    agents = 10 if quick else 120
    plans = [Plan(0.0, (0.0,) * (tape.shape.turns - 1), (None,) * (tape.shape.turns - 1))] * agents
    with own_runtime():
        try:
            info = start_pool(devices=f"cpu:{DEVICES}", threads=1, wait_s=START_TIMEOUT_S)
            run = asyncio.run(_all_agents(info, tape, plans))
        finally:
            stop_pool()
    assert not run.failures, run.failures[:3]
    return [[turn.outputs for turn in turns] for turns in run.turns]


async def _all_agents(info: RuntimeInfo, tape: Tape, plans: Sequence[Plan]) -> Run:
    run = Run(turns=[[] for _ in plans])
    await upload(info, tape.blobs)
    watch = asyncio.create_task(_watch(info, run))
    try:
        await asyncio.gather(
            *(_one_agent(info, run, number, plan, tape.of_agent(number)) for number, plan in enumerate(plans))
        )
    finally:
        watch.cancel()
    run.memory = await asyncio.to_thread(PoolClient(info.url, info.token).memory)
    return run


async def _one_agent(
    info: RuntimeInfo, run: Run, number: int, plan: Plan, turns: Sequence[Sequence[bytes]]
) -> None:
    await asyncio.sleep(plan.arrives_s)
    async with Agent(info, f"agent-{number}") as agent:
        try:
            for index, segments in enumerate(turns):
                run.turns[number].append(await agent.turn(segments))
                if index < len(plan.thinks_s):
                    if plan.says_s[index] is not None:
                        await agent.signal("IO_WAIT", plan.says_s[index])
                    await asyncio.sleep(plan.thinks_s[index])
        except AgentFailed as failure:
            run.failures.append(str(failure))
        run.held += any("memory is full" in reason for reason in agent.reasons)


async def _watch(info: RuntimeInfo, run: Run) -> None:
    """The most that was alive at one moment."""
    client = PoolClient(info.url, info.token)
    while True:
        await asyncio.sleep(1.0)
        sessions = (await asyncio.to_thread(client.memory)).sessions
        run.peak_bytes = max(run.peak_bytes, sum(row.total_bytes for row in sessions))
        run.peak_sessions = max(run.peak_sessions, sum(row.total_bytes > 0 for row in sessions))


def wakes_s(run: Run, plans: Sequence[Plan]) -> list[float]:
    """Of every turn but the first; a turn that an agent could not run is infinite."""
    wakes = []
    for turns, plan in zip(run.turns, plans, strict=True):
        wakes += [turn.restoring_s for turn in turns[1:]]
        wakes += [math.inf] * (len(plan.thinks_s) + 1 - max(1, len(turns)))
    return wakes


def _facts(
    run: Run, wakes_s: Sequence[float], shape: Shape, undisturbed: Sequence[Sequence[str]]
) -> dict[str, Any]:
    floor_s = shape.context * TOKEN_BYTES / LINK_BYTES_PER_S
    outputs = [[turn.outputs for turn in turns] for turns in run.turns]
    different = sum(
        mine != theirs
        for found, expected in zip(outputs, undisturbed, strict=False)
        for mine, theirs in zip(found, expected, strict=False)
    )
    turns_s = sorted(turn.seconds for turns in run.turns for turn in turns)
    counters = run.memory.counters
    swapped = counters.evictions > 0
    return {
        "agents_that_did_not_finish": sum(len(turns) < shape.turns for turns in run.turns),
        "out_of_memory": sum("memory" in failure for failure in run.failures),
        "other_failures": [failure for failure in run.failures if "memory" not in failure][:3],
        "waited_for_admission": run.held,
        "peak_live_sessions": run.peak_sessions,
        "peak_live_bytes": run.peak_bytes,
        "wake_ups": len(wakes_s),
        "wake_p50_s": quantile(wakes_s, 0.5),
        "wake_p99_s": quantile(wakes_s, 0.99),
        "wake_max_s": max(wakes_s, default=0.0),
        "floor_s": floor_s,
        "wake_p99_over_floor": quantile(wakes_s, 0.99) / floor_s,
        "miss_rate": sum(wake > 0 for wake in wakes_s) / max(1, len(wakes_s)),
        "turn_p50_s": quantile(turns_s, 0.5),
        "turn_p99_s": quantile(turns_s, 0.99),
        "different_outputs": different,
        "counters": msgspec.structs.asdict(counters),
        "useless_swaps": 1 - counters.useful_swaps / counters.evictions if swapped else 0.0,
    }


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample that ``share`` of all do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
