"""What one core says, in the words of the other."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab import jobs, memory
from djinn_lab.engine.commands import RoomGranted, RoomHeld, RoomRefused
from djinn_lab.engine.events import SegmentArrived


def asks(job: jobs.Job) -> bool:
    """It waits for session memory's answer; by now it may be over."""
    aside = job.state is jobs.JobState.PREEMPTED and job.memory == "ask"
    return aside or job.state is jobs.JobState.RESTORING or job.memory == "line"


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
    )


def proposed(asked: memory.SegmentPlaced) -> memory.SegmentProposed:
    return memory.SegmentProposed(
        asked.at_s, asked.job, asked.segment, asked.session, asked.peak_bytes, asked.node, asked.op
    )


def answers(command: memory.Command, job: str) -> bool:
    kinds = (memory.AdmitSegment, memory.GrantSegment, memory.HoldSegment, memory.RefuseSegment)
    return isinstance(command, kinds) and command.job == job


def with_verdict(segment: jobs.SegmentSubmitted, verdict: memory.Command) -> jobs.SegmentSubmitted:
    """What session memory said, for the queue."""
    match verdict:
        case memory.GrantSegment():
            return replace(segment, memory="granted")
        case memory.HoldSegment(in_line=True):
            return replace(segment, memory="line")
        case memory.HoldSegment():
            return replace(
                segment,
                memory="held",
                memory_reason=verdict.reason,
                memory_wait_s=verdict.estimate_s,
                memory_room=verdict.room,
                memory_stuck=verdict.stuck,
                memory_closing=verdict.admission,
            )
        case _:
            return segment


def refused(segment: jobs.SegmentSubmitted, verdict: memory.RefuseSegment) -> jobs.SegmentRefused:
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


def of_room(
    command: memory.GrantSegment | memory.HoldSegment | memory.RefuseSegment | memory.MoveRefused,
) -> RoomGranted | RoomHeld | RoomRefused:
    match command:
        case memory.GrantSegment():
            return RoomGranted(command.job)
        case memory.HoldSegment():
            return RoomHeld(command.job, command.reason, command.room or command.admission)
        case memory.RefuseSegment():
            return RoomRefused(command.job, command.message)
        case _:
            return RoomRefused(command.job, command.reason, stays=True)
