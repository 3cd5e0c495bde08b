"""One answer from those of a gang's parts."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from djinn_lab.pool.gangs.course import PartName
from djinn_lab.pool.gangs.plans import GangPlan, PlannedPart
from djinn_lab.protocol.worker import SegmentDone


def whole_answer(
    job: str,
    segment: int,
    plan: GangPlan,
    done: Mapping[PartName, SegmentDone],
    sent_s: Mapping[PartName, float],
    now_s: float,
) -> SegmentDone:
    """``done``: by part, with when it was sent in seconds of the pool's clock. Ops are timed from the moment
    at which the first part was sent, on the clock that all workers share. What the epilogue fetched is the
    cell's; load and fetch are those of the parts in the session, so that all stages add up."""
    last = done["epilogue"]
    began_s = min(sent_s.values())
    starts, ends = [0.0] * plan.ops, [0.0] * plan.ops
    parts: dict[PartName, PlannedPart] = dict(enumerate(plan.groups))
    parts["epilogue"] = plan.epilogue
    if plan.prelude is not None:
        parts["prelude"] = plan.prelude
    for name, part in parts.items():
        answer = done[name]
        offset_s = sent_s[name] - began_s + answer.load_s
        for node, start_s, end_s in zip(part.nodes, answer.node_start_s, answer.node_end_s, strict=True):
            starts[node], ends[node] = offset_s + start_s, offset_s + end_s
    first = done.get("prelude")
    load_s = last.load_s + (first.load_s if first is not None else 0.0)
    run_s = max(0.0, now_s - began_s - load_s - last.fetch_s)
    peak_bytes = max(answer.memory.peak_bytes for answer in done.values())
    return replace(
        last,
        job=job,
        segment=segment,
        rng_state=first.rng_state if first is not None else None,
        node_start_s=starts,
        node_end_s=ends,
        load_s=load_s,
        run_s=run_s,
        memory=replace(last.memory, peak_bytes=peak_bytes),
        exported=(),
    )
