"""Losses: classes that exist, gradients of the shape that the loss had."""

from __future__ import annotations

from typing import Any

import torch

from djinn_lab.worker.guards.checks import CallArguments

_NONE = 0
_CLASSES = (torch.int64, torch.uint8, torch.int32)


def nll_backward(given: CallArguments) -> None:
    source, target = given.self, given.target
    given.expect(source.dim() in (1, 2), "self has a wrong number of dimensions")
    classes = source.shape[-1]
    given.expect_shape("target", source.shape[:-1] if source.dim() == 2 or target.dim() == 0 else (1,))
    given.expect_indices("target", classes, given.ignore_index, _CLASSES)
    _expect_loss(given, source.shape[:-1] if source.dim() == 2 else None)
    given.expect_elements(classes, "weight")
    given.expect_elements(1, "total_weight")
    given.expect_alike("self", "grad_output", "weight", "total_weight")


def nll2d_backward(given: CallArguments) -> None:
    source = given.self
    given.expect(source.dim() == 4, "self has not four dimensions")
    shape = (source.shape[0], *source.shape[2:])
    given.expect_shape("target", shape)
    given.expect_indices("target", source.shape[1], given.ignore_index, _CLASSES)
    _expect_loss(given, shape)
    given.expect_elements(source.shape[1], "weight")
    given.expect_elements(1, "total_weight")
    given.expect_alike("self", "grad_output", "weight", "total_weight")


def multi_margin_backward(given: CallArguments) -> None:
    source = given.self
    given.expect(source.dim() <= 2 and source.numel() > 0, "self is empty, or has more than two dimensions")
    classes = source.shape[-1] if source.dim() else 1
    given.expect_elements(source.numel() // classes, "target")
    given.expect_indices("target", classes, dtypes=(torch.int64,))
    _expect_loss(given, given.target.shape)
    given.expect_elements(classes, "weight")
    given.expect_alike("self", "grad_output", "weight")


def _expect_loss(given: CallArguments, shape: Any) -> None:
    """``grad_output`` is of one element, or of ``shape`` where nothing was reduced."""
    if given.reduction == _NONE and shape is not None:
        given.expect_shape("grad_output", shape)
    else:
        given.expect_elements(1, "grad_output")


def same_shape(given: CallArguments) -> None:
    """For losses whose kernels pair the elements of both."""
    given.expect_shape("target", given.self.shape)
    if given.weight is not None:
        broadcast(given, "weight", given.self.shape)


def same_shape_backward(given: CallArguments) -> None:
    same_shape(given)
    broadcast(given, "grad_output", given.self.shape)


def broadcast(given: CallArguments, name: str, shape: Any) -> None:
    found = getattr(given, name).shape
    sizes = zip(reversed(found), reversed(shape), strict=False)
    right = len(found) <= len(shape) and all(one in (1, size) for one, size in sizes)
    given.expect(right, f"{name} has shape {tuple(found)}, which does not expand to {tuple(shape)}")


def ctc(given: CallArguments) -> None:
    log_probs, targets = given.log_probs, given.targets
    given.expect(log_probs.dim() in (2, 3), "log_probs has neither two nor three dimensions")
    if log_probs.dim() == 2:
        log_probs, targets = log_probs.unsqueeze(1), targets if targets.dim() == 1 else targets.unsqueeze(0)
    steps, batch, classes = log_probs.shape
    inputs, lengths = (_numbers(given, name) for name in ("input_lengths", "target_lengths"))
    given.expect(len(inputs) == len(lengths) == batch, "lengths are not as many as log_probs")
    given.expect(all(0 <= one <= steps for one in inputs), f"an input length is not in 0 to {steps}")
    given.expect(all(one >= 0 for one in lengths), "a target length is negative")
    given.expect(0 <= given.blank < classes, "blank is no class")
    given.expect(targets.dtype in (torch.int32, torch.int64), f"targets are {targets.dtype}")
    longest = max(lengths, default=0)
    if targets.dim() == 1:
        given.expect(sum(lengths) <= targets.numel(), "targets are fewer than their lengths say")
        used = targets[: sum(lengths)]
    else:
        given.expect(targets.dim() == 2 and targets.shape[0] == batch, "targets are not as many as log_probs")
        given.expect(longest <= targets.shape[1], "targets are shorter than their lengths say")
        ends = torch.tensor(lengths, device=targets.device).reshape(-1, 1)
        used = targets[torch.arange(targets.shape[1], device=targets.device) < ends]
    if used.numel():
        least, most = torch.aminmax(used)
        given.expect(
            bool(least >= 0) and bool(most < classes), f"targets have a class outside 0 to {classes - 1}"
        )
    if given.grad is not None:
        given.expect_shape("grad", (batch,))
        given.expect_shape("neg_log_likelihood", (batch,))
        given.expect_shape("log_alpha", (batch, steps, 2 * longest + 1))
        given.expect_alike("log_probs", "grad", "neg_log_likelihood", "log_alpha")


def _numbers(given: CallArguments, name: str) -> list[int]:
    found = getattr(given, name)
    if not isinstance(found, torch.Tensor):
        return list(found)
    given.expect(found.dim() <= 1 and found.dtype in (torch.int32, torch.int64), f"{name} are no lengths")
    return [int(one) for one in found.reshape(-1).tolist()]
