"""Plug-ins that propose a better order of execution.

A strategy only suggests. The scheduler checks that the order gives the same results, plans memory and time
for it, and says in the schedule's explanation what it changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from djinn_lab.srg.graph import SRG


class OptimizationStrategy(Protocol):
    """``name`` appears in the explanation."""

    @property
    def name(self) -> str: ...

    def propose(self, srg: SRG, order: Sequence[int]) -> Sequence[int]:
        """An order of node ids that replaces ``order``; return ``order`` itself to change nothing."""
        ...
