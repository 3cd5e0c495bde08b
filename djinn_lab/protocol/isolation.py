"""Words of isolation: which sessions may share a worker process, and how well such a process is closed in."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import msgspec

Isolation = Literal["user", "account", "session", "none"]
"""What a trust group is: the sessions that may share a process. ``none``: all sessions of the pool."""

ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
ISOLATION_DEFAULT: Isolation = "user"

SandboxLevel = Literal["full", "no-landlock", "driver", "process-only", "none"]
"""``full``: all layers of the sandbox. ``no-landlock``: all but Landlock, so files of the pool's account
are in reach. ``driver``: all layers, as wide as the driver of a GPU needs them. ``process-only``: a process
of its own, without a filter of system calls. ``none``: nothing holds."""

WEAKEST_FIRST: tuple[SandboxLevel, ...] = ("none", "process-only", "driver", "no-landlock", "full")

STRONG: tuple[SandboxLevel, ...] = ("full", "no-landlock", "driver")
"""Levels at which users who do not trust each other may share a pool."""


class Attempt(NamedTuple):
    """An act that a worker must not be able to do. ``layer``: what should refuse it."""

    act: str
    layer: str
    refused: bool


class CanaryFindings(msgspec.Struct, frozen=True):
    """What a process in the sandbox of workers could do. ``works``: whether it can still do what a worker
    does."""

    level: SandboxLevel
    works: bool
    attempts: list[Attempt]
