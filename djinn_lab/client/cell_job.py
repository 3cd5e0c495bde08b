"""A cell on its way to the pool, and the segments that it is sent in."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from djinn_lab.capture.host.interrupts import later
from djinn_lab.capture.sending.backend import Cut
from djinn_lab.client.report import CellReport
from djinn_lab.errors import PoolLost, UserError
from djinn_lab.jobs import NO_TERMS, Terms
from djinn_lab.protocol.messages import SegmentResult, SubmitSegment
from djinn_lab.scheduler import Scheduler
from djinn_lab.srg.program import EncodedProgram
from djinn_lab.srg.reordering import executed_prefix, reordered, values_ahead

STRATEGY_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError)
"""What a strategy of the user's own may raise."""


@dataclass(frozen=True)
class RecordedProgram:
    """``recorded``: in program order. ``order``: the positions of its nodes in ``sent``; None where that is
    the same program."""

    recorded: EncodedProgram
    sent: EncodedProgram
    order: tuple[int, ...] | None = None

    @classmethod
    def arranged(cls, program: EncodedProgram, scheduler: Scheduler | None) -> RecordedProgram:
        """Return the program in the order of the scheduler. Raises UserError where one of its strategies
        fails, or proposes an order that would change results."""
        if scheduler is None or not scheduler.reorders:
            return cls(program, program)
        try:
            order = scheduler.arrange_program(program.program).order
        except STRATEGY_ERRORS as error:
            raise UserError(
                f"a strategy of the scheduler failed: {type(error).__name__}: {error}.",
                "Correct the strategy, or run without it.",
            ) from error
        if order == tuple(range(len(order))):
            return cls(program, program)
        return cls(program, EncodedProgram.of(reordered(program.program, order)), order)

    def executed(self, count: int) -> int:
        """Return how many nodes of program order have run, up to the first that has not, when ``count`` of
        those that were sent have."""
        return count if self.order is None else executed_prefix(self.order, count)

    def ahead(self, count: int) -> list[int]:
        """Return the values that the pool keeps of nodes that ran before an earlier one that did not."""
        return [] if self.order is None else values_ahead(self.recorded.program, self.order, count)


def described_end(error: BaseException | None) -> str:
    """Return what a cell ended with, for the pool and its pages; nothing for success."""
    if error is None:
        return ""
    if isinstance(error, Exception):
        return f"{type(error).__name__}: {error}"
    return str(error) or "stopped by its user"


class CellJob:
    """One cell on its way: identity, options, report. ``file``: with its code, as tracebacks name it.
    ``scheduler``: says in which order its nodes run; None for program order. ``tolerance``: by how much its
    results may differ from those of its ops. ``left``: its code has ended, and its last part is under way.
    ``answered``: that part's answer was here before anything asked for it."""

    def __init__(
        self,
        cell: str,
        code: str,
        priority: str,
        terms: Terms = NO_TERMS,
        scheduler: Scheduler | None = None,
        tolerance: float = 0.0,
    ) -> None:
        self.identifier = uuid.uuid4().hex
        self.terms = terms
        self.scheduler = scheduler
        self.tolerance = tolerance
        self.cell = cell
        self.code = code
        self.file = ""
        self.priority = priority
        self.segments = 0
        self.final = False
        self.finished = False
        self.report = CellReport(cell)
        self._largest: Sequence[EncodedProgram] = ()
        self._parts: list[EncodedProgram] = []
        self.started = perf_counter()
        self.outside_since = self.started
        self.waits = True
        self.left = False
        self.answered = False
        self.unasked_s = 0.0

    @property
    def sent_whole(self) -> bool:
        """Return whether the pool, or the scheduler, is to see as much of the cell at once as there is. Of
        cells that may be compiled equal ones must be sent in equal parts, however fast each is recorded. A
        cell that does not wait has no later moment at which to send another part."""
        reorders = self.scheduler is not None and self.scheduler.reorders
        return self.terms.gang > 1 or reorders or self.tolerance > 0 or not self.waits

    def add_wait(self, result: SegmentResult, sent: float, began: float, received: float) -> None:
        """Note a segment's stages; the cell has waited for it since ``began``. A cell that was left waits
        from the beginning, and no longer than the pool took where the answer came unasked."""
        total_s, waited_s = received - sent, received - began
        if self.left:
            waited_s = min(total_s, result.pool_s) if self.answered else total_s
            self.unasked_s += total_s - waited_s
            total_s, self.answered = waited_s, False
        self.report.add_wait(result.stages, result.pool_s, total_s, waited_s)

    def add_program(self, program: EncodedProgram, ends: bool) -> None:
        """Remember the most that was recorded between two cuts; ``ends``: a cut follows."""
        self._parts.append(program)
        if ends:
            self._largest, self._parts = self.largest, []

    @property
    def largest(self) -> Sequence[EncodedProgram]:
        """Return the parts of what was recorded between two cuts, or since the last one, where that was
        most."""
        return max(self._largest, tuple(self._parts), key=_node_count)


@dataclass
class Flight:
    """A segment under way, sent at ``sent``, answered at ``received`` (this process's ``perf_counter``).
    ``program``: as it was sent. ``stopped``: by its user, which the pool may not know. ``stop``: the
    exception that arrived while the cell waited for it."""

    job: CellJob
    recorded: RecordedProgram
    cut: Cut
    message: SubmitSegment
    sent: float
    received: float | None = None
    lost: PoolLost | None = None
    refused: BaseException | None = None
    stopped: bool = False
    stop: BaseException | None = None

    def note_stop(self, error: BaseException) -> None:
        """Note that an exception arrived which ends the wait."""
        self.stopped, self.stop = True, error if self.stop is None else later(self.stop, error)

    @property
    def program(self) -> EncodedProgram:
        return self.recorded.sent


def _node_count(programs: Sequence[EncodedProgram]) -> int:
    return sum(program.nodes for program in programs)
