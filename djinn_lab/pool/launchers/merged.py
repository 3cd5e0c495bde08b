"""The memory of a device, from what each of its workers reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from djinn_lab.protocol.worker import (
    Closed,
    CopyDone,
    CopyFailed,
    FirstValuesCopied,
    FromWorker,
    Released,
    RunPreempted,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    WorkerMemory,
)

Reporting = (
    SegmentDone
    | SegmentFailed
    | SegmentCancelled
    | RunPreempted
    | Released
    | Closed
    | FirstValuesCopied
    | CopyDone
    | CopyFailed
)
"""Messages with a report of memory."""

NOTHING = WorkerMemory(0, 0, {})


def with_memory(message: Reporting, memory: WorkerMemory) -> FromWorker:
    return msgspec.structs.replace(message, memory=memory)


def merged(own: WorkerMemory, others: Iterable[WorkerMemory]) -> WorkerMemory:
    """Sum up a device's reports. The peak is ``own``'s, beside what the ``others`` hold now."""
    beside = [one for one in others if one is not NOTHING]
    if not beside:
        return own
    every = [own, *beside]
    return WorkerMemory(
        used_bytes=sum(one.used_bytes for one in every),
        peak_bytes=own.peak_bytes + sum(one.used_bytes for one in beside),
        session_bytes=_joined(one.session_bytes for one in every),
        shared_bytes=sum(one.shared_bytes for one in every),
        kv_bytes=_joined(one.kv_bytes for one in every),
        unstored_bytes=_joined(one.unstored_bytes for one in every),
        ready_bytes=_joined(one.ready_bytes for one in every),
        weight_bytes=_joined(one.weight_bytes for one in every),
        offloaded_bytes=_joined(one.offloaded_bytes for one in every),
        host_bytes=sum(one.host_bytes for one in every),
        disk_bytes=sum(one.disk_bytes for one in every),
        on_disk_bytes=_joined(one.on_disk_bytes for one in every),
        held_bytes=sum(one.held_bytes for one in every),
    )


def _joined(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """A session is in one process of a device, so no part hides another."""
    found: dict[str, int] = {}
    for part in parts:
        found.update(part)
    return found
