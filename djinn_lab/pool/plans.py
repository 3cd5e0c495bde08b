"""Graph and schedule of a stored program, computed when somebody looks (in a thread)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djinn_lab.pool.database.history import StoredProgram
from djinn_lab.protocol.devices import device_profile
from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.scheduler import Scheduler
from djinn_lab.srg.export import to_json
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs
from djinn_lab.srg.program import Program, decode_program


def program_of(stored: StoredProgram) -> Program:
    """All parts as one program."""
    return merge_programs([decode_program(part.program) for part in stored.parts])


def _joined_timings(stored: StoredProgram) -> tuple[list[float], list[float]] | None:
    """Per node, seconds on the device since the first part began; pauses between parts are left out. None
    until all have run."""
    starts: list[float] = []
    ends: list[float] = []
    for part in stored.parts:
        if part.timings is None:
            return None
        before = ends[-1] if ends else 0.0
        starts += [before + start for start in part.timings[0]]
        ends += [before + end for end in part.timings[1]]
    return starts, ends


def graph_json(stored: StoredProgram) -> bytes:
    """The SRG with the number of its last segment, as JSON."""
    document = to_json(SRG.from_program(program_of(stored)))
    return msgspec.json.encode({**document, "segment": stored.segment})


def schedule_json(stored: StoredProgram, device: str | None, infos: Sequence[DeviceInfo]) -> bytes:
    """The schedule on the device that ran it (else the first), with measured times where it ran, as JSON."""
    srg = SRG.from_program(program_of(stored))
    info = next((info for info in infos if info.device == device), infos[0])
    schedule = Scheduler(devices=[device_profile(info)]).create_schedule(srg)
    timings = _joined_timings(stored)
    if timings is not None:
        schedule = schedule.with_measured(*timings)
    return msgspec.json.encode({**schedule.to_json(), "segment": stored.segment})
