"""Long seeded walks of the policy machine: deeper than a search for small examples gets."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from sampled import sampled
from test_policy_machine import (
    NAMES,
    EagerMachine,
    KeepAllMachine,
    PolicyMachine,
    RecomputeMachine,
    WriteBackMachine,
)

STEPS = 300
WALKS = sampled(40, 15)
WEIGHTS = {
    "open_session": 4,
    "close_session": 1,
    "place": 12,
    "finish_segment": 14,
    "withdraw": 1,
    "shrink": 1,
    "transfer_ends": 20,
    "first_values_arrive": 8,
    "signal": 6,
    "end_cell": 3,
    "detach_or_resume": 2,
    "device_dies": 1,
    "tick": 5,
    "move_session": 5,
    "order_line": 2,
}


def arguments(rule: str, random: Random) -> dict[str, object]:
    session = random.choice(NAMES)
    match rule:
        case "open_session" | "move_session":
            return {"session": session, "second": random.random() < 0.2}
        case "order_line":
            line = random.sample(NAMES, len(NAMES))
            return {"second": random.random() < 0.5, "line": line, "count": random.randrange(6)}
        case "place":
            return {
                "session": session,
                "peak": random.choice([0, 10, 100, 300, 500, 700]),
                "rank": 0,
                "kept_share": random.choice([None, None, 0, 50, 100]),
            }
        case "finish_segment":
            share = random.choice([0, 5, 50, 100])
            return {"which": random.randrange(99), "share": share, "whole_cell": random.random() < 0.8}
        case "shrink":
            return {"session": session, "smaller": random.choice([0, 50, 90])}
        case "transfer_ends":
            return {
                "which": random.randrange(99),
                "how": random.choice(["done"] * 10 + ["fail", "mismatch", "mismatch"]),
            }
        case "first_values_arrive":
            return {"which": random.randrange(99)}
        case "signal":
            phase = random.choice(["COMPUTE", "IO_WAIT", "IO_WAIT", "SOON", "NAP"])
            return {"session": session, "phase": phase, "wait": random.choice([None, 0.0, 5.0, 1e9, -1.0])}
        case "device_dies":
            return {"second": random.random() < 0.3}
        case "tick":
            return {"seconds": random.choice([0.001, 0.1, 1.0, 1.0, 60.0, 1e4])}
        case _:
            return {"session": session}


def walk(machine: PolicyMachine, random: Random) -> None:
    machine.start(host=random.choice([0, 200, 600, 600, 2000, 2000]), disk=random.choice([0, 3000]))
    rules = [rule for rule, weight in WEIGHTS.items() for _ in range(weight)]
    if isinstance(machine, KeepAllMachine):
        rules = [rule for rule in rules if rule != "move_session"]
    for _ in range(STEPS):
        rule = random.choice(rules)
        idle = not any(engine.under_way for engine in machine.engines.values())
        if rule in ("transfer_ends", "first_values_arrive") and idle:
            continue
        if rule == "device_dies" and random.random() < 0.8:
            continue
        getattr(machine, rule)(**arguments(rule, random))
        machine.valid()
        machine.limits_hold()
        machine.where_they_are()
        machine.every_wait_has_a_cause()


@pytest.mark.parametrize(
    "kind", [PolicyMachine, KeepAllMachine, WriteBackMachine, EagerMachine, RecomputeMachine]
)
def test_long_walks(kind: type[PolicyMachine]) -> None:
    """The walks reach copies and failures of every kind, so that their checks mean something."""
    sums: Counter[str] = Counter()
    for seed in range(WALKS):
        machine = kind()
        walk(machine, Random(seed))
        sums.update(msgspec.structs.asdict(machine.accounts.snapshot().counters))
        sums.update(machine.seen)
    if kind is KeepAllMachine:
        assert sums["evictions"] == sums["stores"] == 0
    else:
        assert min(sums["evictions"], sums["restores"], sums["mismatches"], sums["failed_transfers"]) > 0
        assert min(sums["DropParked"], sums["RejectMove"]) > 0
    if kind is PolicyMachine:
        assert sums["early"] > 0
