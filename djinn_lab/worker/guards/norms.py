"""Normalisation: parameters and statistics have as many elements as there are channels or groups."""

from __future__ import annotations

from math import prod
from typing import Any

from djinn_lab.worker.guards.checks import CallArguments


def _channels(given: CallArguments, source: Any) -> int:
    given.expect(source.dim() >= 2, "input has less than two dimensions")
    channels = int(source.shape[1])
    given.expect_elements(channels, "weight", "bias", "running_mean", "running_var")
    return channels


def batch_norm(given: CallArguments) -> None:
    source = given.input
    channels = _channels(given, source)
    for name in ("running_mean", "running_var", "weight", "bias"):
        found = getattr(given, name)
        given.expect(found is None or found.dim() == 1, f"{name} has not one dimension")
    given.expect_alike(
        "input", "weight"
    ) if given.weight is not None and not given.weight.is_floating_point() else None
    if given.save_mean is not None:
        given.expect(given.out is None or given.out.shape == source.shape, "out has not the shape of input")
        count = channels if given.training is not False else given.save_mean.numel()
        given.expect_sizes(count, "save_mean", "save_invstd")


def batch_norm_backward(given: CallArguments) -> None:
    source = given.input
    channels = _channels(given, source)
    grad = "grad_out" if given.grad_out is not None else "grad_output"
    given.expect_shape(grad, source.shape)
    given.expect_alike("input", grad)
    trains = given.train if given.train is not None else given.update
    given.expect_elements(channels, *(("save_mean", "save_invstd", "save_var") if trains else ()))
    needed = ("save_mean", "save_invstd" if given.save_var is None else "save_var")
    for name in needed if trains else ("running_mean", "running_var"):
        given.expect(getattr(given, name) is not None, f"{name} is needed")


def group_norm(given: CallArguments) -> None:
    count, channels, inner, groups = given.N, given.C, given.HxW, given.group
    given.expect(
        min(count, channels, inner) >= 0 and groups > 0, "a size is negative, or there are no groups"
    )
    given.expect(channels % groups == 0, f"{channels} channels do not make {groups} groups")
    given.expect_elements(count * channels * inner, "input", "grad_out")
    given.expect_elements(channels, "weight", "bias")
    given.expect_elements(count * groups, "mean", "rstd")


def layer_norm_backward(given: CallArguments) -> None:
    source, shape = given.input, tuple(given.normalized_shape)
    given.expect(
        bool(shape) and tuple(source.shape[-len(shape) :]) == shape,
        "input does not end with normalized_shape",
    )
    given.expect_shape("grad_out", source.shape)
    given.expect_elements(prod(source.shape[: source.dim() - len(shape)]), "mean", "rstd")
    given.expect_elements(prod(shape), "weight", "bias")
    given.expect_alike("input", "grad_out")


def weight_norm(given: CallArguments) -> None:
    source, dim = (given.v if given.v is not None else given.saved_v), given.dim
    given.expect(source.dim() > 0 and dim in (0, source.dim() - 1), "dim is neither the first nor the last")
    given.expect_elements(source.shape[dim], "g", "saved_g", "saved_norms")
    given.expect(source.numel() > 0, "v is empty")
    if given.grad_w is not None:
        given.expect_shape("grad_w", source.shape)
        given.expect_alike("grad_w", "saved_v", "saved_g")
    else:
        given.expect_alike("v", "g")
