"""Describes what an op, or a message, raised."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import torch

from djinn_lab.errors import DeviceMemoryError, DjinnError, Refused, ValueLost
from djinn_lab.protocol.worker import RemoteFailure
from djinn_lab.srg.program import Program


def describe(
    error: Exception, program: Program, executed: int, running: bool, missing: Sequence[int] = ()
) -> RemoteFailure:
    """Say whose fault it is and, when ``running``, in which node: the one after ``executed`` others.
    ``missing``: sources that the session should have held."""
    node = executed if running else None
    op = program.templates[program.nodes[executed].template].op if running else None
    text = str(error.message) if isinstance(error, DjinnError) else str(error)
    out_of_memory = isinstance(error, (DeviceMemoryError, MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in text
    )
    if out_of_memory:
        family = "memory"
    elif isinstance(error, Refused):
        family = "refused"
    elif isinstance(error, (ValueLost, AssertionError)):
        family = "pool"
    else:
        family = "user" if running else "pool"
    frames = [line.rstrip() for line in traceback.format_tb(error.__traceback__)]
    return RemoteFailure(family, type(error).__name__, text, node, op, frames, list(missing))
