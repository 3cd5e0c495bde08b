"""One op for several sessions: their rows are put together, and each gets its own rows of the result."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.worker.batched.join_points import JoinPoint
from djinn_lab.worker.batched.joinable import operands_of
from djinn_lab.worker.memory_account import MemoryAccount


def identity(point: JoinPoint) -> Hashable:
    """Return what is equal for join points that may run as one: the node, its op and numbers, and the very
    memory of the weight."""
    operands = operands_of(point.call.op)
    rows, weight = point.inputs[operands.rows], point.inputs[operands.weight]
    assert rows is not None
    assert weight is not None
    memory = weight.data_ptr(), weight.dtype, weight.shape, weight.stride()
    return point.node, point.call.op, rows.dtype, rows.shape[1:], tuple(point.scalars), memory


def join(points: Sequence[JoinPoint], account: MemoryAccount) -> list[torch.Tensor] | None:
    """Run the op once, and return each member's rows of the result in memory of its own; None where the
    device has no memory for that besides what the members have reserved. Raises what the op raises."""
    first = points[0]
    operands = operands_of(first.call.op)
    weight = first.inputs[operands.weight]
    assert weight is not None
    rows = _operand(points, operands.rows)
    counts = [len(one) for one in rows]
    inner, width = weight.shape
    nbytes = sum(counts) * (inner + 2 * width) * weight.element_size()
    try:
        account.reserve(nbytes, "joining rows of several sessions")
    except DeviceMemoryError:
        return None
    try:
        account.mark_peak()
        inputs = list(first.inputs)
        inputs[operands.rows] = torch.cat(rows)
        if operands.bias is not None:
            biases = _operand(points, operands.bias)
            inputs[operands.bias] = torch.cat(
                [bias.expand(count, width) for bias, count in zip(biases, counts, strict=True)]
            )
        whole: torch.Tensor = first.call(inputs, first.scalars)
        return [part.clone() for part in whole.split(counts)]
    finally:
        account.release(nbytes)


def _operand(points: Sequence[JoinPoint], place: int) -> list[torch.Tensor]:
    return [operand for point in points if (operand := point.inputs[place]) is not None]
