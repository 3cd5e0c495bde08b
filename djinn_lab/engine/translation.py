"""Translates one core's messages into the other's."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab import jobs, memory
from djinn_lab.engine.commands import PartMemoryDeferred, PartMemoryGranted, PartMemoryRejected
from djinn_lab.engine.events import SegmentArrived
from djinn_lab.events import MemoryRelease
from djinn_lab.jobs.decision import BRIEF_S


def asks(job: jobs.Job) -> bool:
    """Return whether the job waits for session memory's answer; the job may be over by now."""
    aside = job.state is jobs.JobState.PREEMPTED and job.memory == "ask"
    return aside or job.state is jobs.JobState.RESTORING or job.memory == "queued"


def placed(event: SegmentArrived) -> memory.SegmentPlaced:
    segment = event.segment
    return memory.SegmentPlaced(
        at_s=event.at_s,
        job=segment.job,
        segment=segment.segment,
        session=segment.session,
        peak_bytes=event.peak_bytes,
        rank=jobs.RANKS.get(segment.priority, len(jobs.RANKS)),
        node=event.node,
        op=event.op,
        kept_bytes=event.kept_bytes,
        floor_bytes=event.floor_bytes,
        floor_node=event.floor_node,
        floor_op=event.floor_op,
        batch=segment.batch or _interleaved_with(segment),
    )


def _interleaved_with(segment: jobs.SegmentSubmitted) -> str:
    """Name the brief segments with which a brief one may run at once, between the ops of a longer one."""
    brief = segment.predicted_s is not None and segment.predicted_s <= BRIEF_S
    return f"brief, {segment.process}" if segment.process and brief else ""


def proposed(asked: memory.SegmentPlaced) -> memory.SegmentProposed:
    return memory.SegmentProposed(
        *(asked.at_s, asked.job, asked.segment, asked.session, asked.peak_bytes, asked.node, asked.op),
        floor_bytes=asked.floor_bytes,
        floor_node=asked.floor_node,
        floor_op=asked.floor_op,
    )


def answers(command: memory.Command, job: str) -> bool:
    kinds = (memory.AdmitSegment, memory.GrantSegment, memory.DeferSegment, memory.RejectSegment)
    return isinstance(command, kinds) and command.job == job


def with_verdict(segment: jobs.SegmentSubmitted, verdict: memory.Command) -> jobs.SegmentSubmitted:
    """Return the segment as the queue sees it, with session memory's answer filled in."""
    match verdict:
        case memory.GrantSegment():
            return replace(segment, memory="granted")
        case memory.DeferSegment(queued=True):
            return replace(segment, memory="queued")
        case memory.DeferSegment():
            return replace(
                segment,
                memory="deferred",
                memory_reason=verdict.sentence,
                memory_wait_s=verdict.estimate_s,
                memory_release=verdict.release,
            )
        case _:
            return segment


def refused(segment: jobs.SegmentSubmitted, verdict: memory.RejectSegment) -> jobs.SegmentRefused:
    return jobs.SegmentRefused(
        at_s=segment.at_s,
        job=segment.job,
        segment=segment.segment,
        session=segment.session,
        user=segment.user,
        priority=segment.priority,
        ops_total=segment.ops_total,
        final=segment.final,
        message=verdict.sentence,
    )


def of_part(
    command: memory.GrantSegment | memory.DeferSegment | memory.RejectSegment | memory.RejectMove,
) -> PartMemoryGranted | PartMemoryDeferred | PartMemoryRejected:
    match command:
        case memory.GrantSegment():
            return PartMemoryGranted(command.job)
        case memory.DeferSegment():
            blocked = command.release not in (MemoryRelease.COPIES, MemoryRelease.CELLS)
            return PartMemoryDeferred(command.job, command.reason, blocked)
        case memory.RejectSegment():
            return PartMemoryRejected(command.job, command.message)
        case _:
            return PartMemoryRejected(command.job, command.reason, immovable=True)
