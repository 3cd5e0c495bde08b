"""What capture asks of the backend that runs its programs: a session of a pool, or a worker in process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from djinn_lab.srg.program import EncodedProgram, TensorMeta

INLINE_SOURCE_BYTES_MAX = 64 * 2**10
"""Sources up to this size travel in the program; larger ones are staged as blobs."""


@dataclass(frozen=True)
class Cut:
    """Why a segment is sent now: ``cause`` (``"cell end"``, ``"item"``, ``"print"``, ``"fetch"`` ...) and
    cell line (0: none)."""

    cause: str
    line: int


@dataclass(frozen=True)
class RunResult:
    """The result of a program. ``executed`` nodes ran; ``error`` is what to raise then. ``fetched`` run
    parallel to ``program.fetch``: contiguous plain tensors. ``dynamic_metas``: layouts of the last node's
    outputs when it was dynamic. ``pool_lost``: every value is gone. ``run_s``: seconds the device ran nodes.
    ``arrived``: the program's sources are on the device, even if nothing ran. ``missing``: values that the
    pool no longer has, for want of which nothing ran. ``stop``: the exception that arrived while the result
    was awaited, which must leave the cell also where ``error`` is of no interest."""

    executed: int
    fetched: Sequence[torch.Tensor] = ()
    dynamic_metas: Sequence[TensorMeta | None] = ()
    rng_state: bytes | None = None
    error: BaseException | None = None
    pool_lost: bool = False
    arrived: bool = True
    run_s: float = 0.0
    missing: Sequence[int] = ()
    stop: BaseException | None = None


class Backend(Protocol):
    """Runs programs in order."""

    @property
    def follow_max(self) -> int:
        """Return how many programs may be submitted behind the one that is to be answered next. Such a one
        runs only if all before it end well; else the answer to it is an error, with nothing executed."""
        ...

    def stage(self, data: memoryview) -> str:
        """Copy bytes out of the client's memory, so that later writes cannot change them; return what
        the pool calls them."""
        ...

    def release(self, values: Sequence[int]) -> None:
        """Release these values, which no tensor holds any more."""
        ...

    def submit(self, program: EncodedProgram, cut: Cut) -> None:
        """Begin to run a program, once those before have ended well."""
        ...

    def is_done(self) -> bool:
        """Return whether :meth:`result` would answer at once, about the oldest program."""
        ...

    def result(self, cancel: bool = False) -> RunResult:
        """Wait for the oldest program that is not answered (``cancel``: stop it first). Faults come back in
        the result."""
        ...
