"""What a program's run comes to, how it is asked to stop, and how a failure is described."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from djinn_lab.errors import DeviceMemoryError, DjinnError, Refused, ValueLost
from djinn_lab.protocol.worker import FetchedTensor, Handed, RemoteFailure
from djinn_lab.srg.program import Program, TensorMeta

Stop = Literal["cancelled", "preempted"]


@dataclass
class Outcome:
    """``failure`` and ``stopped`` None: every node ran. ``executed``: of all nodes, also those of earlier
    runs of a resumed program; ``node_times`` (:class:`~djinn_lab.protocol.worker.NodeTimes`) are this
    run's. ``missing``: sources that the session should hold
    here, and does not. ``undone``: stopped, with nothing of this run left. ``out_bytes``, ``in_bytes``: of
    values that were offloaded, and came back; ``ahead_bytes``: of these, while ops ran before their
    reader. ``left``: why a compiled region was not run; the program stopped before it, as if it were
    preempted. ``compiled``, ``compiled_ops``, ``batched_with``: as in
    :class:`~djinn_lab.protocol.worker.SegmentDone`."""

    executed: int = 0
    ops_total: int = 0
    failure: RemoteFailure | None = None
    missing: list[int] = field(default_factory=list)
    stopped: Stop | None = None
    undone: bool = False
    fetched: list[FetchedTensor] = field(default_factory=list)
    exported: tuple[Handed, ...] = ()
    dynamic_metas: list[TensorMeta | None] = field(default_factory=list)
    rng_state: bytes | None = None
    if_given_up: list[int] = field(default_factory=list)
    node_times: bytes = b""
    load_s: float = 0.0
    run_s: float = 0.0
    fetch_s: float = 0.0
    out_bytes: int = 0
    in_bytes: int = 0
    ahead_bytes: int = 0
    left: str = ""
    compiled: str = ""
    compiled_ops: int = 0
    batched_with: int = 0


class RegionLeft(Exception):
    """A compiled region was not run, and nothing of it was done: its ops are to run one by one. The message
    says why."""


class StopSignal:
    """Ask a run to stop, or to pause between two ops, from any thread. Called, it returns the stop that was
    asked. ``raised``: one byte, not 0 once something was asked, for code that looks at it without the GIL.
    ``others``: called in a pause, in the thread of the run; None: it takes none."""

    __slots__ = ("_asked", "others", "raised")

    def __init__(self) -> None:
        self._asked: Stop | None = None
        self.others: Callable[[], None] | None = None
        self.raised = bytearray(1)

    def __call__(self) -> Stop | None:
        return self._asked

    def ask(self, stop: Stop) -> None:
        """A cancel replaces a preemption, not the other way round."""
        if stop == "cancelled" or self._asked is None:
            self._asked = stop
            self.raised[0] = 1

    def ask_to_pause(self) -> None:
        self.raised[0] = 1

    def pause(self) -> None:
        """Let others run, where that may have been asked: called by the run, between two ops."""
        self.raised[0] = 0
        if self._asked is not None:  # it stays raised: asked before, or meanwhile
            self.raised[0] = 1
        elif self.others is not None:
            self.others()


_NO_KERNEL = "with arguments from the"
"""Torch says so, and names all devices that have one."""


def describe(
    error: Exception, program: Program, executed: int, running: bool, missing: Sequence[int] = ()
) -> RemoteFailure:
    """Say whose fault it is and, when ``running``, in which node: the one after ``executed`` others.
    ``missing``: sources that the session should have held."""
    node = executed if running else None
    op = program.templates[program.nodes[executed].template].op if running else None
    text = str(error.message) if isinstance(error, DjinnError) else str(error)
    if isinstance(error, torch.AcceleratorError):
        text = (
            f"{text.splitlines()[0]}. The device stopped at this op, or at one shortly before it: an index "
            "beyond a tensor's size does that, such as a token above the size of an embedding."
        )
    elif isinstance(error, NotImplementedError) and _NO_KERNEL in text:
        text = (
            f"{text.split('. ')[0]}. The device has no kernel for this op: run the cell on a device of "
            "another kind, as with --target kind=cpu, or in the notebook (%%local)."
        )
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
