"""Graph and schedule of a stored program, computed when somebody looks (in a thread)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from djinn_lab.pool.history import StoredProgram
from djinn_lab.protocol.devices import device_profile
from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.scheduler import Scheduler
from djinn_lab.srg.export import to_json
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program import decode_program


def graph_json(stored: StoredProgram) -> bytes:
    """The SRG with the number of its segment, as JSON."""
    document = to_json(SRG.from_program(decode_program(stored.program)))
    return msgspec.json.encode({**document, "segment": stored.segment})


def schedule_json(stored: StoredProgram, device: str | None, infos: Sequence[DeviceInfo]) -> bytes:
    """The schedule on the device that ran it (else the first), with measured times where it ran, as JSON."""
    srg = SRG.from_program(decode_program(stored.program))
    info = next((info for info in infos if info.device == device), infos[0])
    schedule = Scheduler(devices=[device_profile(info)]).create_schedule(srg)
    if stored.timings is not None:
        schedule = schedule.with_measured(*stored.timings)
    return msgspec.json.encode({**schedule.to_json(), "segment": stored.segment})
