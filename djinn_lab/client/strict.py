"""``--strict``: a cell that would be cut fails at the line that needs the value."""

from __future__ import annotations

from djinn_lab.capture.backend import Cut
from djinn_lab.client.cuts import cure_of, is_explicit, name_of
from djinn_lab.errors import StrictError


def forbid_cuts(cut: Cut) -> None:
    """Raises StrictError for an implicit fetch. What was recorded before it is kept."""
    if is_explicit(cut.cause):
        return
    where = f"line {cut.line}" if cut.line else "something outside the cell's own lines"
    raise StrictError(
        f"{where} needs a value in mid-cell: {name_of(cut.cause)}. Under --strict that is an error.",
        f"Instead: {cure_of(cut.cause)}. Or fetch on purpose with .cpu() or djinn_lab.fetch.",
    )
