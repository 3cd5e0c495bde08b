"""Which recorder captures: the native one where it can be loaded, else the one in Python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch

from djinn_lab.capture.former_tensors import FormerTensors
from djinn_lab.capture.host.placement import Placement
from djinn_lab.capture.sending.backend import Backend
from djinn_lab.capture.sending.segment import Launched, Segment
from djinn_lab.capture.torch_functions import script_modules
from djinn_lab.capture.torch_functions.optimizer_state import SteppedOptimizers
from djinn_lab.capture.torch_functions.pool_devices import PoolDevice
from djinn_lab.capture.torch_functions.pool_memory import SessionsMemory
from djinn_lab.errors import UserError
from djinn_lab.native import load
from djinn_lab.protocol.version import TORCH_LEAST, TORCH_MIN, TORCH_WANTED, minor_of

CHOICE = "DJINN_LAB_RECORDER"
"""Environment variable: ``native`` or ``python``; without it, what there is."""


class Checkpoint(Protocol):
    """A copy of a recorder's values, to be restored after a rehearsal."""

    def remember_write(self, tensor: torch.Tensor) -> None:
        """Note that a lazy tensor is about to be written."""
        ...

    def restore(self, reason: str) -> None:
        """Values that are new since do not exist, for ``reason``; the others are what they were."""
        ...


class Recorder(Protocol):
    """Records torch ops as graph nodes and gets values when they are needed. One per session. ``devices``:
    those of the pool, none where they are not known. ``replayable``: accelerators compute by deterministic
    algorithms, so that what runs again has the same bits."""

    lock: Any
    segment: Segment
    scopes: Any
    optimizers: SteppedOptimizers
    capturing: bool
    owner: object
    may_display: Callable[[], bool]
    devices: Callable[[], Sequence[PoolDevice]]
    device_memory: SessionsMemory
    replayable: bool
    placement: Placement
    former: FormerTensors
    keeps_histories: bool
    host_only: bool

    @property
    def ops_recorded(self) -> int: ...

    @property
    def plans_made(self) -> int: ...

    @property
    def captures_here(self) -> bool: ...

    def captured_cell(self, cell: str, file: str) -> AbstractContextManager[None]: ...

    def set_aside(self, cause: str) -> AbstractContextManager[None]:
        """Record nothing inside, where another recorder captures; then resume. Raises what the recorded draws
        and writes to plain tensors, which are made first, run into."""
        ...

    def paused_recording(self) -> AbstractContextManager[None]: ...

    def finish(self, cause: str) -> None: ...

    def launch(self, cause: str, launched: Launched) -> bool:
        """Send what is pending without waiting, and return whether anything is under way; only plain tensors
        that were written are waited for."""
        ...

    def put_on_pool(self, tensor: torch.Tensor) -> bool:
        """Turn a plain tensor into a lazy one in place, and return whether that could be done."""
        ...

    def settle_plain(self, tensor: torch.Tensor) -> None:
        """Bring a plain tensor up to what captured ops wrote to it, if they did."""
        ...

    def fetch_tensors(self, tensors: Sequence[torch.Tensor], cause: str) -> list[torch.Tensor]: ...

    def fetch_whole(self, tensors: Sequence[torch.Tensor], cause: str) -> None: ...

    def only_on_pool(self) -> list[torch.Tensor]:
        """Return a tensor for each memory that tensors of this process hold, and the host has no copy of."""
        ...

    def host_bytes(self, tensor: torch.Tensor) -> torch.UntypedStorage: ...

    def adopt_copy(self, tensor: torch.Tensor) -> torch.Tensor: ...

    def pool_id(self, tensor: torch.Tensor) -> int:
        """Return the number by which the pool knows the memory of a lazy tensor."""
        ...

    def checkpoint(self) -> Checkpoint: ...

    def value_of_lazy(self, tensor: torch.Tensor) -> object: ...

    def value_to_keep(self, tensor: torch.Tensor) -> object:
        """Return the value of a lazy tensor, which is about to be given another, for
        :meth:`restore_value`."""
        ...

    def identity_of(self, tensor: torch.Tensor) -> object:
        """Return what tells the memory and the layout of a lazy tensor from others, and holds neither."""
        ...

    def begin_part(self) -> None:
        """Note that what is recorded from now on is another part of the cell, or another cell."""
        ...

    def made_in_part(self, tensor: torch.Tensor) -> bool:
        """Return whether an op of this part of the cell made the memory of a tensor."""
        ...

    def why_lost(self, tensor: torch.Tensor) -> str | None:
        """Return why a tensor has no value, None where it has one."""
        ...

    def take_histories(self, puts_back: bool) -> None:
        """Forget what tensors that the cell wrote were to autograd. ``puts_back``: let those that nothing has
        written since be that again."""
        ...

    def renew_views(self, views: Sequence[torch.Tensor]) -> None:
        """Let views be to autograd a part of what their bases are, some of which were put back."""
        ...

    def leave_histories(self) -> None:
        """Note that the cell has written what it writes."""
        ...

    def remember_history(self, tensor: torch.Tensor) -> None:
        """Note that something else than an op is about to change what a tensor is to autograd."""
        ...

    def restore_value(self, tensor: torch.Tensor, value: Any) -> None: ...

    def drop_dirty(self) -> list[int]: ...

    def replace(self, lazy: torch.Tensor, plain: torch.Tensor) -> None: ...


def chosen() -> str:
    """Return ``native`` or ``python``. Raises UserError for another choice, or for a native recorder that is
    not there."""
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "native", "python"):
        raise UserError(f"{CHOICE}={choice} is not a recorder.", "Use native or python.")
    if choice == "python":
        return "python"
    there = load("recorder") is not None
    if choice == "native" and not there:
        from djinn_lab.native import why_missing

        raise UserError(f"the native recorder cannot be used: {why_missing('recorder')}")
    return "native" if there else "python"


def make_recorder(backend: Backend, stream_nodes: int | None = None) -> Recorder:
    """Make a recorder of the kind that was chosen. Warns of a torch that is older than the tested ones."""
    if minor_of(str(torch.__version__)) < TORCH_MIN:
        warnings.warn(
            f"torch {torch.__version__} is older than {TORCH_LEAST}, the oldest that is tested: "
            f'what make_fx traces in a cell may be constants. pip install "{TORCH_WANTED}"',
            stacklevel=2,
        )
    script_modules.install()
    if chosen() == "native":
        from djinn_lab.capture.native.recorder import NativeRecorder

        return NativeRecorder(backend, stream_nodes)
    from djinn_lab.capture.python.recorder import PythonRecorder as PythonRecorder

    return PythonRecorder(backend, stream_nodes)


_capturing: list[Recorder] = []


@contextmanager
def capturing(recorder: Recorder, cell: str, file: str) -> Iterator[None]:
    """Record everything inside. What is pending at the end stays pending: the caller flushes. A cell of
    another session around this one resumes afterwards."""
    outer = capturing_recorder()
    with ExitStack() as stack:
        if outer is not None and outer is not recorder:
            stack.enter_context(outer.set_aside("another session's cell began"))
        _capturing.append(recorder)
        stack.callback(_capturing.remove, recorder)
        stack.enter_context(recorder.captured_cell(cell, file))
        yield


def capturing_recorder() -> Recorder | None:
    """Return the recorder of the cell that runs in this process."""
    return _capturing[-1] if _capturing else None
