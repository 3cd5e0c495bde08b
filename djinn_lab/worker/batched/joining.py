"""One op for several sessions: their rows are put together, and each gets its own rows of the result."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.worker.batched.joinable import operands_of
from djinn_lab.worker.batched.join_points import JoinPoint
from djinn_lab.worker.compiled.distance import distance
from djinn_lab.worker.memory_account import MemoryAccount


def identity(point: JoinPoint) -> Hashable:
    """Return what is equal for join points that may run as one: the op, its numbers, and the very memory of
    the operands that they share."""
    shared = [point.inputs[place] for place in operands_of(point.call.op).shared]
    rows = point.inputs[operands_of(point.call.op).rows]
    assert rows is not None
    memory = tuple(
        None if one is None else (one.data_ptr(), one.dtype, tuple(one.shape), one.stride()) for one in shared
    )
    return point.node, point.call.op, rows.dtype, rows.shape[1:], tuple(point.scalars), memory


def join(points: Sequence[JoinPoint], account: MemoryAccount) -> list[torch.Tensor] | None:
    """Run the op once, and return each member's rows of the result in memory of its own; None where the
    device has no memory for that besides what the members have reserved. Raises what the op raises."""
    first = points[0]
    place = operands_of(first.call.op).rows
    rows = [point.inputs[place] for point in points]
    present = [one for one in rows if one is not None]
    weight = first.inputs[-1]
    assert weight is not None
    counts = [len(one) for one in present]
    width = weight.shape[1]
    nbytes = sum(counts) * (weight.shape[0] + width) * weight.element_size()
    try:
        account.reserve(nbytes, "joining rows of several sessions")
    except DeviceMemoryError:
        return None
    try:
        account.mark_peak()
        inputs = list(first.inputs)
        inputs[place] = torch.cat(present)
        whole: torch.Tensor = first.call(inputs, first.scalars)
        return [part.clone() for part in whole.split(counts)]
    finally:
        account.release(nbytes)


def largest_distance(joined: Sequence[torch.Tensor], alone: Sequence[torch.Tensor]) -> float:
    """Return the least tolerance within which every member's result is what it computes alone."""
    return max(map(distance, joined, alone), default=0.0)
