"""How a program runs in a session that is still being restored: its ops wait for what they read, and its end
for the end of the copy, so that nothing is answered that a failed copy would undo."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from djinn_lab.worker.outcome import Stop
from djinn_lab.worker.values import RestoreFailed, SessionValues

LOOK_S = 0.05
"""How often a run that waits looks whether it is to stop."""


def await_values(
    values: SessionValues, identifiers: Iterable[int | None], should_stop: Callable[[], Stop | None]
) -> None:
    """Return when the bytes of these are on the device, or the run is to stop. Raises RestoreFailed when they
    will not come."""
    changed = values.tiers.fences.changed
    found = [values.storage_of.get(identifier) for identifier in identifiers]  # type: ignore[arg-type]
    storages = [storage for storage in found if storage is not None]
    with changed:
        while any(storage.arriving for storage in storages):
            loading = values.loading
            if loading is None or loading.problem is not None:
                raise RestoreFailed
            if should_stop() is not None:
                return
            changed.wait(LOOK_S)


def await_whole(values: SessionValues) -> bool:
    """Return when all of the session is on the device and the pool knows; False as soon as the copy fails."""
    changed = values.tiers.fences.changed
    with changed:
        loading = values.loading
        if loading is None or loading.origin is None:
            return True
        while values.loading is loading and loading.problem is None:
            changed.wait()
        return loading.problem is None


def await_end(values: SessionValues) -> None:
    """Return when the session is parked again after its copy failed, and the pool knows. The run is over."""
    changed = values.tiers.fences.changed
    with changed:
        loading = values.loading
        while loading is not None and values.loading is loading:
            changed.wait()
