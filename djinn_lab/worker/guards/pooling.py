"""Pooling, padding and resampling backward: the gradient has the shape of what the forward op returned."""

from __future__ import annotations

from math import prod

import torch

from djinn_lab.worker.guards.checks import CallArguments, Check


def averaged(dimensions: int) -> Check:
    """``_adaptive_avg_pool2d_backward`` and the like."""

    def check(given: CallArguments) -> None:
        grad, source = given.grad_output, given.self
        given.expect(
            source.dim() in (dimensions + 1, dimensions + 2), "self has a wrong number of dimensions"
        )
        given.expect(grad.dim() == source.dim(), "grad_output has another number of dimensions than self")
        leading = source.dim() - dimensions
        given.expect(
            grad.shape[:leading] == source.shape[:leading], "grad_output has other channels than self"
        )
        given.expect(bool(grad.numel()) == bool(source.numel()), "one of self and grad_output is empty")
        given.expect_alike("self", "grad_output")

    return check


def pooled(dimensions: int) -> Check:
    """Pooling that returns where each maximum lies."""
    averages = averaged(dimensions)

    def check(given: CallArguments) -> None:
        averages(given)
        given.expect_shape("indices", given.grad_output.shape)
        given.expect_indices("indices", prod(given.self.shape[-dimensions:]), dtypes=(torch.int64,))

    return check


def padded(dimensions: int, reflects: bool) -> Check:
    """The gradient of a padded tensor: ``padding`` counts from the last dimension."""

    def check(given: CallArguments) -> None:
        source, padding = given.self, given.padding
        given.expect(len(padding) == 2 * dimensions, f"padding has {len(padding)} numbers")
        given.expect(
            source.dim() in (dimensions + 1, dimensions + 2), "self has a wrong number of dimensions"
        )
        shape = list(source.shape)
        for place in range(dimensions):
            before, after = padding[2 * place : 2 * place + 2]
            size = shape[-1 - place]
            given.expect(size > 0 and size + before + after > 0, "self or grad_output is empty")
            if reflects:
                given.expect(max(before, after) < size, "padding is not less than a size of self")
                given.expect(size + min(before, after) > 0, "padding leaves nothing of self")
            shape[-1 - place] = size + before + after
        given.expect_shape("grad_output", shape)
        given.expect_alike("self", "grad_output")

    return check


def grid_sampled(dimensions: int) -> Check:
    def check(given: CallArguments) -> None:
        source, grid = given.input, given.grid
        given.expect(
            source.dim() == grid.dim() == dimensions + 2, "input or grid has a wrong number of dimensions"
        )
        given.expect(grid.shape[-1] == dimensions, f"grid has {grid.shape[-1]} coordinates")
        given.expect(grid.shape[0] == source.shape[0], "grid is for another number of inputs")
        given.expect(all(source.shape[2:]), "input is empty")
        given.expect_shape("grad_output", (*source.shape[:2], *grid.shape[1:-1]))
        given.expect_alike("input", "grid", "grad_output")

    return check
