"""Kernels of a GPU recorded once as a CUDA graph, and started as one from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def record(run: Callable[[], Sequence[torch.Tensor]]) -> tuple[Callable[[], None], Sequence[torch.Tensor]]:
    """Return what starts the kernels that ``run`` starts, and the tensors that they fill each time. Nothing
    is computed yet. Their memory is the graph's own, and that of what ``run`` reads stays named in it.

    Other threads of the process go on copying meanwhile, so only calls of this one can spoil the recording:
    what waits for the GPU, such as reading a number. Raises RuntimeError then."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        made = run()
    return graph.replay, made
