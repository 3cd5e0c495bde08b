"""Say to a user what was made again after a worker was lost."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_lab.units import counted, format_seconds


@dataclass(slots=True)
class LostWorker:
    """A lost worker of ``device``, or the whole pool where that is empty, of which a session's user has not
    heard. ``cell``: that was under way, if any, and whether it ran again. ``values``, ``ops``: that were
    replayed."""

    device: str
    cell: str = ""
    again: bool = False
    values: int = 0
    ops: int = 0
    recovery_s: float = 0.0

    @property
    def how(self) -> str:
        """Say what was lost, as the beginning of a sentence."""
        return f"the process of {self.device} was lost" if self.device else "the pool was killed"


def recovered(lost: LostWorker, copied: int) -> str:
    """Make the line for the notebook. ``copied``: values of the session's last whole copy."""
    where = f" in {lost.cell}" if lost.cell else ""
    parts = []
    if copied:
        parts.append(f"{counted(copied, 'value')} restored from copies")
    if lost.values or lost.ops:
        many = f"{lost.values}" if copied else counted(lost.values, "value")
        parts.append(f"{many} by replay of {counted(lost.ops, 'op')}")
    if lost.again:
        parts.append("the cell ran again")
    took = f", {format_seconds(lost.recovery_s)}" if lost.recovery_s else ""
    what = f"worker of {lost.device} lost{where}" if lost.device else f"pool killed{where} and started again"
    return f"{what}; {', '.join(parts) or 'nothing was lost with it'}{took}"
