"""What a worker is told about a segment that is to start before all of its session is restored."""

from __future__ import annotations

from djinn_lab.pool.admission import INLINE_BYTES_MAX
from djinn_lab.pool.records import JobRecord, RunningSegment
from djinn_lab.protocol.worker import Reads
from djinn_lab.srg.first_uses import FirstUses, first_uses
from djinn_lab.srg.plan_key import decode_contents
from djinn_lab.srg.program import decode_program


def reads_of(job: str, record: JobRecord | None) -> Reads | None:
    """None for one that starts when all is there: a gang's, and one that would take long to look at."""
    flight = record.flight if record is not None else None
    if flight is None or flight.gang is not None:
        return None
    uses = _uses(flight)
    return None if uses is None else Reads(job, uses.values, uses.first)


def _uses(flight: RunningSegment) -> FirstUses | None:
    executed = flight.stops.executed if flight.stops is not None else 0
    if not executed:
        return _named(flight)
    if len(flight.program) > INLINE_BYTES_MAX:
        return None
    return first_uses(decode_program(flight.program), executed)


def _named(flight: RunningSegment) -> FirstUses | None:
    """By the numbers that this program's values have."""
    if flight.reads is None:
        return None
    sources = decode_contents(flight.program).sources
    return FirstUses(tuple(sources[place].value for place in flight.reads.values), flight.reads.first)
