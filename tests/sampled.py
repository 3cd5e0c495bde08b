"""Tests with more cases than ``make test`` has time for: it runs a sample, and ``make sweep-cases`` all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

ALL = "SWEEP_CASES" in os.environ
Cases = TypeVar("Cases", int, Sequence[int], Sequence[str])


def sampled(cases: Cases, sample: Cases) -> Cases:
    return cases if ALL else sample
