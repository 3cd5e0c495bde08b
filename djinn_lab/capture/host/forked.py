"""Processes forked out of the notebook: workers of data loaders, launchers of training, a user's own.

A fork inherits the modes of the cell that is being captured and the connection to the pool, and may use
neither: it runs torch as usual, on the values that the notebook has fetched. Before loaders start workers,
the lazy tensors of their data set are fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from djinn_lab.capture.host.random_stream import DEFAULT
from djinn_lab.capture.lazy import is_lazy
from djinn_lab.errors import CaptureError
from djinn_lab.system.processes import after_fork

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder

DEPTH_MAX = 6


def leave_cell() -> None:
    """Stop capturing in a new process, where no cell is captured."""
    pop: Any = (
        torch._C._pop_torch_dispatch_stack
    )  # its stub lacks the argument: which mode, None for the last
    dispatch = [pop(None) for _ in range(torch._C._len_torch_dispatch_stack())]
    for mode in reversed(dispatch):
        if not _is_ours(mode):
            torch._C._push_on_torch_dispatch_stack(mode)
    function = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    for mode in reversed(function):
        if not _is_ours(mode):
            torch._C._push_on_torch_function_stack(mode)
    random: Any = torch.random
    random.default_generator = vars(torch)["default_generator"] = DEFAULT


def _is_ours(mode: object) -> bool:
    return type(mode).__module__.startswith("djinn_lab.")


after_fork(leave_cell)


def check_process(owner: int) -> None:
    """Raise unless this process opened the session: no other may speak with the pool."""
    if os.getpid() == owner:
        return
    if get_worker_info() is not None:
        raise CaptureError(
            "a lazy tensor's values are on the pool, and a worker process cannot ask for them.",
            "Make the data set from plain tensors (.cpu()), or use num_workers=0.",
        )
    raise CaptureError(
        "this process was forked from the one that has the session: it can read what that one read before, "
        "and ask the pool for nothing.",
        "Bring the model home before the fork: session.pull(model), or %djinn pull model in a notebook.",
    )


def fetch_for_workers(recorder: Recorder, loader: DataLoader[object]) -> None:
    """Bring the values of the data set here, as its workers will read them."""
    if loader.num_workers > 0:
        recorder.fetch_whole(list(_lazy_tensors(loader.dataset, DEPTH_MAX)), "a data loader's workers")


def _lazy_tensors(item: object, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.Tensor) and is_lazy(item):
        yield item
    elif depth and not isinstance(item, (str, bytes, torch.Tensor, torch.nn.Module)):
        if isinstance(item, dict):
            children: Any = item.values()
        else:
            children = item if isinstance(item, (list, tuple)) else getattr(item, "__dict__", {}).values()
        for child in children:
            yield from _lazy_tensors(child, depth - 1)
