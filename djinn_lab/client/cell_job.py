"""A cell on its way to the pool, and the segments that it is sent in."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from djinn_lab.capture.sending.backend import Cut
from djinn_lab.client.report import CellReport
from djinn_lab.errors import PoolLost
from djinn_lab.jobs import NO_TERMS, Terms
from djinn_lab.protocol.messages import SubmitSegment
from djinn_lab.srg.program import EncodedProgram


class CellJob:
    """One cell on its way: identity, options, report. ``largest``: the parts of what was recorded between
    two cuts, where that was most."""

    def __init__(self, cell: str, code: str, priority: str, terms: Terms = NO_TERMS) -> None:
        self.identifier = uuid.uuid4().hex
        self.terms = terms
        self.cell = cell
        self.code = code
        self.priority = priority
        self.segments = 0
        self.final = False
        self.finished = False
        self.report = CellReport(cell)
        self.largest: Sequence[EncodedProgram] = ()
        self._parts: list[EncodedProgram] = []
        self.started = perf_counter()
        self.outside_since = self.started

    def add_program(self, program: EncodedProgram, ends: bool) -> None:
        """Remember the most that was recorded between two cuts; ``ends``: a cut follows."""
        self._parts.append(program)
        if ends:
            if _node_count(self._parts) > _node_count(self.largest):
                self.largest = tuple(self._parts)
            self._parts = []


@dataclass
class Flight:
    """A segment under way, sent at ``sent``, answered at ``received`` (this process's ``perf_counter``).
    ``stopped``: by its user, which the pool may not know."""

    job: CellJob
    program: EncodedProgram
    cut: Cut
    message: SubmitSegment
    sent: float
    received: float | None = None
    lost: PoolLost | None = None
    refused: BaseException | None = None
    stopped: bool = False


def _node_count(programs: Sequence[EncodedProgram]) -> int:
    return sum(program.nodes for program in programs)
