"""The states of a recorded pool, by its own engine: journaled events up to a moment, handled again."""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import msgspec

from djinn_lab.engine import Engine
from djinn_lab.journal import Record, ReplayDiffers, replay, this_version, version_of
from djinn_lab.pool.database.recording import RecordedEvents, Recording, no_recording, read_recording
from djinn_lab.units import format_clock

USED_S = 150.0
"""Longer than the chart of used memory."""


class UsedMemory(NamedTuple):
    """Used bytes by device at a moment, seconds since the epoch."""

    at_s: float
    used_bytes: dict[str, int]


class RecordedRun:
    """A run of a pool that was replayed once, so that it is known how far it is whole. ``records``: that
    part. ``moments``: when there were events, in order, seconds since the epoch. ``note``: why there is no
    more, empty where it is whole. Thread-safe."""

    def __init__(self, path: Path, events: RecordedEvents) -> None:
        self.path, self.pool = path, events.pool
        whole, differs = _whole(events)
        self.records = events.records[:whole]
        if not whole:
            raise no_recording(path, differs)
        self.note = self._said(differs or events.broken)
        self._times = [record.at_s for record in self.records]
        self.moments = sorted({*self._times})
        self._lock = threading.Lock()

    @property
    def begins_at(self) -> float:
        """Return when the first event was, seconds since the epoch."""
        return self._times[0]

    @property
    def ends_at(self) -> float:
        """Return when the last event was, seconds since the epoch."""
        return self._times[-1]

    @property
    def version(self) -> str:
        """Return the version that wrote the recording; empty where it does not say."""
        return version_of(self.records[0])

    def within(self, at_s: float) -> float:
        """Return the nearest moment of the recording."""
        return min(max(at_s, self.begins_at), self.ends_at)

    def place_of(self, at_s: float) -> int:
        """Return the number of the last moment with events up to a time, from 0."""
        return max(0, bisect_right(self.moments, at_s) - 1)

    def step(self, at_s: float, moments: int) -> float:
        """Return the moment so many later, or earlier where ``moments`` is negative."""
        place = self.place_of(at_s) + moments
        return self.moments[min(max(place, 0), len(self.moments) - 1)]

    def engine_at(self, at_s: float) -> tuple[Engine, list[UsedMemory]]:
        """Return the engine after all events up to a moment, and the use of memory in the time before."""
        engine = Engine()
        used: list[UsedMemory] = []
        with self._lock:  # one at a time: it keeps a processor busy
            records = self.records[: bisect_right(self._times, at_s)]
            for record, _ in zip(records, replay(records, engine), strict=True):
                if record.at_s > at_s - USED_S:
                    used.append(UsedMemory(record.at_s, _used_bytes(engine)))
        return engine, used

    def _said(self, reason: str) -> str:
        if not reason:
            return ""
        last = self.records[-1]
        clock = format_clock(last.at_s)
        return f"The recording is shown up to event {last.seq} at {clock}: {reason}."


def _used_bytes(engine: Engine) -> dict[str, int]:
    accounts = ((view.device, engine.accounts.device(view.device)) for view in engine.queue.devices())
    return {device: account.used_bytes for device, account in accounts if account is not None}


def _whole(events: RecordedEvents) -> tuple[int, str]:
    """Return how many records lead this version to the same decisions, and why the next one does not."""
    engine, count = Engine(), 0
    try:
        for _ in replay(events.records, engine):
            count += 1
    except ReplayDiffers as difference:
        return count, _sentence(events.records[0], f"{difference}")
    except msgspec.DecodeError as error:
        return count, f"event {events.records[count].seq} cannot be read ({error})"
    return count, ""


def _sentence(first: Record, difference: str) -> str:
    """Name the first difference, and the versions where these may be the cause."""
    reason = difference.partition("\n")[0].rstrip(".:")
    written_by = version_of(first)
    if written_by == this_version():
        return reason
    return f"{reason} (djinn-lab {written_by or 'of an earlier version'} wrote it, this is {this_version()})"


class SharedRuns:
    """Recordings that were read and replayed, for all browser sessions of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recordings: dict[Path, Recording] = {}
        self._runs: dict[str, RecordedRun] = {}

    def read(self, path: Path, pool: str) -> tuple[Recording, RecordedRun]:
        """Return a recording, read once, and the run of ``pool``, the beginning of whose id suffices; the
        newest run where that names none. Raises UserError for a file that is no recording."""
        with self._lock:
            if path not in self._recordings:
                self._recordings[path] = read_recording(path)
            recording = self._recordings[path]
            events = chosen_run(recording, pool)
            if events.pool not in self._runs:
                self._runs[events.pool] = RecordedRun(path, events)
            return recording, self._runs[events.pool]


def chosen_run(recording: Recording, pool: str) -> RecordedEvents:
    """Return the newest run whose id begins with ``pool``, else the newest."""
    named = [events for events in recording.runs if pool and events.pool.startswith(pool)]
    return named[-1] if named else recording.runs[-1]


def read_run(path: Path) -> RecordedRun:
    """Read the newest run of a recording. Raises UserError for a file that is none."""
    return SharedRuns().read(path, "")[1]
