"""Fingerprints that a GPU takes at the speed of its memory: two weighted wrap-around sums of 64 bits."""

from __future__ import annotations

import torch

WEIGHT_STEP = 0x3C6EF372FE94F82A
"""Even, so that all weights are odd and no bit of a word goes unseen; far from any simple ratio, so that
words which change places do not cancel out."""
MIXING_SHIFT = 29


def weights_for(words: int, device: torch.device) -> torch.Tensor:
    """One per 8 bytes."""
    return torch.arange(words, dtype=torch.int64, device=device) * WEIGHT_STEP + 1


def weighted_sums(memory: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return two weighted sums of contiguous uint8 memory: two int64 on the same device. ``weights``: at
    least one per 8 bytes begun."""
    flat = memory.view(-1)
    rest = -flat.numel() % 8
    if rest or flat.storage_offset() % 8:
        flat = torch.cat([flat, flat.new_zeros(rest)])
    words = flat.view(torch.int64)
    used = weights[: words.numel()]
    mixed = words ^ (words >> MIXING_SHIFT)
    return torch.stack([(words * used).sum(), ((mixed * used) >> MIXING_SHIFT).sum()])
