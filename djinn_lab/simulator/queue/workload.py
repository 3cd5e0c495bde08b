"""What is simulated: jobs as they were submitted, and the nodes that they were meant for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from djinn_lab.jobs.request import ComputeNode, Demand

NORMAL = 2
"""The rank of a job whose trace names no priority."""


class TraceJob(msgspec.Struct, frozen=True, gc=False):
    """A job of a trace; ``run_s``: how long it runs undisturbed. ``estimate_s``: what was known of that when
    it was submitted, None when nothing. ``account``: that pays, ``"group/user"``. ``pool``: the part of the
    cluster that it was submitted to; parts do not help each other. ``state_bytes``: of its session, restored
    before it computes and parked after it."""

    job: str
    submit_s: float
    run_s: float
    demand: Demand
    account: str = "all"
    estimate_s: float | None = None
    pool: str = ""
    rank: int = NORMAL
    state_bytes: int = 0


class Follower(NamedTuple):
    """A job that its session submits ``think_s`` after the one before it has ended, whenever that is."""

    think_s: float
    job: TraceJob


class BrokenLine(msgspec.Struct, frozen=True):
    """A line that could not be read; ``number``: in the file, from 1."""

    number: int
    reason: str


class Trace(msgspec.Struct, frozen=True):
    """``jobs``: by time of submission. ``nodes``: by pool, where the trace says. ``left_out``: rows that are
    right but no work, such as jobs that were cancelled before they ran. ``followers``: by the job before, the
    next one of its session (a closed loop); they are not among ``jobs``."""

    name: str
    jobs: Iterable[TraceJob]
    nodes: Mapping[str, tuple[ComputeNode, ...]] = {}
    broken: tuple[BrokenLine, ...] = ()
    left_out: int = 0
    followers: Mapping[str, Follower] = {}


def equal_nodes(count: int, devices: int, prefix: str = "node") -> tuple[ComputeNode, ...]:
    """Return ``count`` nodes with so many devices each."""
    return tuple(ComputeNode(f"{prefix}{number:05}", devices=devices) for number in range(count))
