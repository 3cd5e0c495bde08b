"""Pictures of tensors, as tutorials save them."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image


def make_grid(
    tensor: Any, nrow: int = 8, padding: int = 2, normalize: bool = False, **ignored: Any
) -> torch.Tensor:
    pictures = torch.stack(list(tensor)) if isinstance(tensor, (list, tuple)) else tensor
    pictures = pictures.unsqueeze(0) if pictures.dim() == 3 else pictures
    if normalize:
        low, high = float(pictures.min()), float(pictures.max())
        pictures = (pictures.clamp(low, high) - low) / max(high - low, 1e-5)
    rows = [torch.cat(list(row), dim=2) for row in pictures.split(nrow) if len(row) == nrow]
    grid = torch.cat(rows, dim=1) if rows else pictures[0]
    return grid.expand(3, -1, -1) if grid.shape[0] == 1 else grid


def save_image(tensor: Any, path: Any, nrow: int = 8, normalize: bool = False, **ignored: Any) -> None:
    grid = make_grid(tensor, nrow, normalize=normalize)
    array = grid.mul(255).add_(0.5).clamp_(0, 255).permute(1, 2, 0).to("cpu", torch.uint8).numpy()
    Image.fromarray(array).save(path)
