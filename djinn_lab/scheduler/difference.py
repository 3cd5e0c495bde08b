"""Why a schedule's predicted and measured times differ: which groups of ops account for how much."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from djinn_lab.scheduler.schedule import ExecutionSchedule, ScheduledNode
from djinn_lab.units import format_seconds, listed

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
BETWEEN_OPS = "time between ops"
OVERLAP = "ops that ran at the same time"
TRANSFERS = "transfers, which are predicted alone"
MOST = 0.7
"""Part of the difference after which no more groups are named."""
NAMED_MAX = 3


class Share(msgspec.Struct, frozen=True):
    """What a group of ops adds to the difference: measured less predicted ``seconds``, of ``ops`` ops."""

    name: str
    ops: int
    seconds: float


def group_name(node: ScheduledNode) -> str:
    """Return the module with its numbers replaced by stars, so that equal layers are one group; outside
    modules the cell line."""
    if node.module:
        return _NUMBER.sub("*", node.module)
    return f"line {node.line}" if node.line else "outside modules"


def difference_shares(schedule: ExecutionSchedule) -> tuple[Share, ...]:
    """Divide the measured less the predicted seconds among groups of ops, the time between ops and transfers;
    the largest share first. The shares add up to the difference. Empty before all ops were measured."""
    starts, ends = schedule.node_start_s, schedule.node_end_s
    measured_s = schedule.measured_s
    if starts is None or ends is None or measured_s is None or len(ends) < len(schedule.nodes):
        return ()
    seconds: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    for node in schedule.nodes:
        name = group_name(node)
        ops[name] += 1
        ran_s = ends[node.node] - starts[node.node]
        seconds[name] += ran_s - (node.end_s - node.start_s)  # type: ignore[assignment]
    busy_s = sum(end - start for start, end in zip(starts, ends, strict=True))
    idle_s = measured_s - busy_s
    shares = [Share(name, ops[name], float(value)) for name, value in seconds.items()]
    shares.append(Share(BETWEEN_OPS if idle_s >= 0 else OVERLAP, 0, idle_s))
    shares.append(Share(TRANSFERS, 0, schedule.compute_s - schedule.predicted_s))
    return tuple(sorted(shares, key=lambda share: -abs(share.seconds)))


def difference_sentence(schedule: ExecutionSchedule) -> str:
    """Say in one sentence which groups account for most of the difference; empty before all ops ran."""
    shares = difference_shares(schedule)
    if not shares or schedule.measured_s is None:
        return ""
    total_s = schedule.measured_s - schedule.predicted_s
    direction = "longer" if total_s >= 0 else "shorter"
    causes = [share for share in shares if share.seconds * total_s > 0]
    whole_s = sum(abs(share.seconds) for share in causes)
    named: list[str] = []
    covered_s = 0.0
    for share in causes[:NAMED_MAX]:
        named.append(_named(share))
        covered_s += abs(share.seconds)
        if covered_s >= MOST * whole_s:
            break
    if not named:
        return "Predicted and measured times are equal."
    sentence = (
        f"The run took {format_seconds(abs(total_s))} {direction} than predicted, mostly in {listed(named)}"
    )
    against = next((share for share in shares if share.seconds * total_s < 0), None)
    if against is not None and abs(against.seconds) >= 0.25 * whole_s:
        sentence += f"; {_named(against)} against it"
    return sentence + "."


def _named(share: Share) -> str:
    sign = "+" if share.seconds >= 0 else "−"
    return f"{share.name} ({sign}{format_seconds(abs(share.seconds))})"
