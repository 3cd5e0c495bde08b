"""The files that messages name between pool and workers: uploads that one reads, results that it made."""

from __future__ import annotations

from collections.abc import Iterable

from djinn_lab.protocol.worker import FromWorker, Handed, RunBatch, RunSegment, SegmentDone, ToWorker


def runs_of(message: ToWorker) -> list[RunSegment]:
    """Return the segments that a worker runs by this order; none for orders of other kinds."""
    segments = message.segments if isinstance(message, RunBatch) else (message,)
    return [one for one in segments if isinstance(one, RunSegment)]


def needed_files(message: ToWorker) -> tuple[dict[str, None], dict[str, None]]:
    """Return the uploads and the results that a worker will read for this order, by name."""
    runs = runs_of(message)
    uploads = {name: None for run in runs for name in run.blobs.values()}
    return uploads, _handed(one for run in runs for one in run.imports)


def made_files(message: FromWorker) -> dict[str, None]:
    """Return the results that a worker made for the receiver of this message, by name."""
    if not isinstance(message, SegmentDone):
        return {}
    fetched = {one.blob: None for one in message.fetched if one.blob is not None}
    return fetched | _handed(message.exported)


def _handed(handed: Iterable[Handed]) -> dict[str, None]:
    return {one.blob: None for one in handed if one.blob is not None}
