"""What a notebook is likely to take, from those with the same code and parameters that ran before."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from djinn_lab.jobs.batch.notebook import Notebook
from djinn_lab.jobs.batch.states import NotebookState
from djinn_lab.jobs.resources import RUNS_MAX, Comparisons, Foretold, from_runs


class Expected(msgspec.Struct, frozen=True):
    """``earlier``: the run that needed most memory."""

    foretold: Foretold
    earlier: str


def foretell(notebooks: Iterable[Notebook], content: str) -> Expected | None:
    """None where none like it ran before. Seconds are those of runs that went well, if there are any: one
    that failed did not take all of its own; its memory counts."""
    known, compared = [], Comparisons()
    for one in notebooks:
        if one.use is None:
            continue
        if one.content == content and content:
            known.append(one)
        if one.foretold is not None and one.state is NotebookState.DONE:
            compared.add(one.foretold, one.use)
    if not known:
        return None
    known = known[-RUNS_MAX:]
    uses = [one.use for one in known if one.use is not None]
    found = from_runs(uses, compared.error)
    well = [one.use for one in known if one.use is not None and one.state is NotebookState.DONE]
    if well:
        found = msgspec.structs.replace(found, device_s=from_runs(well, None).device_s)
    fullest = max(known, key=lambda one: 0 if one.use is None else one.use.peak_bytes)
    return Expected(found, fullest.job)
