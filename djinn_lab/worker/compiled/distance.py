"""How far apart two results are, in the measure of a tolerance."""

from __future__ import annotations

import torch

_PART = 2**16
"""Elements that are compared at a time, which takes some memory."""


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the least tolerance ``t`` with ``|ours - theirs| <= t + t * |theirs|`` everywhere. Infinity and
    what is not a number must be the same, and so must whole numbers."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return float("inf")
    if not ours.is_floating_point():
        return 0.0 if torch.equal(ours, theirs) else float("inf")
    parts = zip(ours.reshape(-1).split(_PART), theirs.reshape(-1).split(_PART), strict=True)
    return max((_distance(*part) for part in parts), default=0.0)


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    if not ours.numel():
        return 0.0
    ours, theirs = ours.double(), theirs.double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = ((ours - theirs).abs() / (1.0 + theirs.abs())).masked_fill(same, 0.0)
    return float(apart.nan_to_num(nan=float("inf"), posinf=float("inf")).max())
