"""What a cut is called, which ones the user asked for, and how to do without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from djinn_lab.capture.sending.backend import Cut
from djinn_lab.errors import StrictError
from djinn_lab.srg.merging import STREAMED
from djinn_lab.units import format_seconds

LOOP_CUTS_MIN = 5
"""So often must one line cut a cell, with ops in between, to be called a loop that does."""
LOOPS_SHOWN_MAX = 3
_EXPLICIT = frozenset(("cpu", "fetch", "save", "cell end", STREAMED, "verify", "checkpoint", "publish"))

_NAMES = {
    "item": "item (.item(), float(), int(), bool() or `if tensor:`)",
    "print": "print (or repr, str, an f-string)",
    "numpy": "numpy (.numpy(), np.asarray, a plot)",
    "tolist": "tolist",
    "address": "address (.data_ptr(), .untyped_storage(), safetensors)",
    "equal": "torch.equal",
}
_CURES = {
    "item": "collect the tensors in a list and call .item() after the loop; a condition can often be "
    "computed with torch.where, or looked at every hundred steps",
    "print": "collect what you want to see in a list and print it after the loop",
    "numpy": "collect the tensors in a list and call torch.stack(list).numpy() after the loop",
    "tolist": "collect the tensors in a list and call .tolist() after the loop",
    "address": "save or read by address after the loop",
    "equal": "compare with (a == b).all(), which stays on the pool, and look at the results after the loop",
    "a random seed was set": "set the seed once, before the first random op of the cell",
    "random numbers were drawn on the host": "draw them before the loop, or give the host's draws a "
    "torch.Generator of their own",
    "the state of random numbers was read": "read it before the first random op of the cell",
    "a view of a written tensor was read": "move the tensor to the pool with .cuda() before the loop",
    "a tensor written in this cell was read on the host": "move the tensor to the pool with .cuda() before "
    "the loop",
}
_ON_HOST = "its result needs the data; use an op whose result size is known (torch.where instead of a mask)"


def is_explicit(cause: str) -> bool:
    """Did the user ask for the value by name (or is it no cut at all)?"""
    return cause in _EXPLICIT


def name_of(cause: str) -> str:
    """Return a user's name for the cause of a cut."""
    if cause.startswith("aten."):
        return f"{cause.split('.')[1]} (its result depends on data)"
    return _NAMES.get(cause, cause)


def cure_of(cause: str) -> str:
    """Return what to write instead of a cut's cause, as the end of a sentence."""
    return _CURES.get(cause, _ON_HOST)


@dataclass(frozen=True)
class CutRecord:
    """One segment: why it was sent, from which cell line (0: none), how many ops it held, how long it
    took in all, and how long of that the device ran ops."""

    cause: str
    line: int
    ops: int
    seconds: float
    run_s: float = 0.0


@dataclass(frozen=True)
class LoopOfCuts:
    """One line that cut the cell ``count`` times. ``cost_s``: what waiting took beyond the device's own
    work."""

    cause: str
    line: int
    count: int
    cost_s: float

    def sentence(self) -> str:
        where = f"line {self.line}" if self.line else "outside the cell's own lines"
        return (
            f"{where}: {name_of(self.cause)} cut the cell {self.count} times, "
            f"{format_seconds(self.cost_s)} beside the computing. Instead: {cure_of(self.cause)}."
        )


def loops_of_cuts(cuts: Iterable[CutRecord]) -> list[LoopOfCuts]:
    """The lines that cut at least :data:`LOOP_CUTS_MIN` times with ops in between, dearest first."""
    found: dict[tuple[str, int], list[CutRecord]] = {}
    for cut in cuts:
        if cut.ops and not is_explicit(cut.cause):
            found.setdefault((cut.cause, cut.line), []).append(cut)
    loops = [
        LoopOfCuts(cause, line, len(group), sum(max(0.0, cut.seconds - cut.run_s) for cut in group))
        for (cause, line), group in found.items()
        if len(group) >= LOOP_CUTS_MIN
    ]
    return sorted(loops, key=lambda loop: -loop.cost_s)


def warning_of(loops: Sequence[LoopOfCuts]) -> str:
    """One warning for a cell, however many lines it names."""
    shown = [loop.sentence() for loop in loops[:LOOPS_SHOWN_MAX]]
    if len(loops) > LOOPS_SHOWN_MAX:
        shown.append(f"and {len(loops) - LOOPS_SHOWN_MAX} more lines: see %djinn report")
    shown.append("In a library's code this is slower, not wrong; --quiet leaves this message out.")
    return "\n  ".join(("Djinn Lab: a loop waits for the pool each time round.", *shown))


def forbid_cuts(cut: Cut) -> None:
    """Raises StrictError for an implicit fetch. What was recorded before it is kept."""
    if is_explicit(cut.cause):
        return
    where = f"line {cut.line}" if cut.line else "something outside the cell's own lines"
    raise StrictError(
        f"{where} needs a value in mid-cell: {name_of(cut.cause)}. Under --strict that is an error.",
        f"Instead: {cure_of(cut.cause)}. Or fetch on purpose with .cpu() or djinn_lab.fetch.",
    )
