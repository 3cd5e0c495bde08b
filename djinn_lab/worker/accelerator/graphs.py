"""Kernels of an accelerator recorded once, as a CUDA graph, and started as one from then on.

No GPU has run it yet. The tests' own accelerator has, which torch reaches by its general form of graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import torch

Tensors = Sequence[torch.Tensor]


def recorder(
    device: torch.device,
) -> Callable[[Callable[[], Tensors]], tuple[Callable[[], None], Tensors]]:
    """Return a function that records what a call starts on the device. It returns what starts these kernels
    again, and the tensors that they fill each time; nothing is computed yet. Their memory is of a pool that
    all living graphs share, since none of them runs beside another: what lies between is used again.
    The memory that the call reads is named in the graph, and not held.

    Other threads of the process go on copying meanwhile, so only calls of the recording one can spoil it, as
    reading a number does, which waits for the GPU. It raises RuntimeError then."""
    stream = torch.Stream(device)
    living: WeakSet[Any] = WeakSet()

    def record(run: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        with torch.accelerator.device_index(device.index or 0), stream:
            graph = _begun(device, next(iter(living), None))
            try:
                made = run()
            except BaseException:
                with suppress(RuntimeError):  # which says only that there was an error
                    graph.capture_end()
                raise
            graph.capture_end()
        living.add(graph)
        return graph.replay, made

    return record


def _begun(device: torch.device, other: Any) -> Any:
    """Return a graph that records the current stream, into memory of another one's pool where there is one.
    CUDA's graphs have no general form in torch 2.13."""
    pool = None if other is None else other.pool()
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()  # which the allocator cannot do for itself while it records
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        return graph
    general = torch.accelerator.Graph(pool=pool, capture_error_mode="thread_local")
    general.capture_begin()
    return general
