"""Kernels of a GPU recorded once, as a CUDA graph, and started as one from then on. No GPU has run it yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensors = Sequence[torch.Tensor]


def recorder(
    device: torch.device,
) -> Callable[[Callable[[], Tensors]], tuple[Callable[[], None], Tensors]]:
    """Return a function that records what a call starts on the device. It returns what starts these kernels
    again, and the tensors that they fill each time; nothing is computed yet. Their memory is the graph's own.
    The memory that the call reads is named in the graph, and not held.

    Other threads of the process go on copying meanwhile, so only calls of the recording one can spoil it, as
    reading a number does, which waits for the GPU. It raises RuntimeError then."""
    stream = torch.cuda.Stream(device)

    def record(run: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(device),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            made = run()
        return graph.replay, made

    return record
