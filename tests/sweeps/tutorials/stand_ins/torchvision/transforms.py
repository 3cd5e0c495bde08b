"""The transforms that tutorials put in front of a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    def __call__(self, picture: Any) -> torch.Tensor:
        array = np.array(picture)
        array = array[:, :, None] if array.ndim == 2 else array
        return torch.from_numpy(array.transpose(2, 0, 1).copy()).float().div(255)


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean, self.std = mean, std

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(item).view(-1, 1, 1) for item in (self.mean, self.std))
        return (tensor - mean) / std


class Resize:
    def __init__(self, size: int | Sequence[int], interpolation: Any = None) -> None:
        self.size = size

    def __call__(self, picture: Image.Image) -> Image.Image:
        if isinstance(self.size, int):
            scale = self.size / min(picture.size)
            return picture.resize((round(picture.width * scale), round(picture.height * scale)))
        return picture.resize((self.size[1], self.size[0]))


class CenterCrop:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, picture: Image.Image) -> Image.Image:
        left, top = (picture.width - self.size) // 2, (picture.height - self.size) // 2
        return picture.crop((left, top, left + self.size, top + self.size))


class Pad:
    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, picture: Image.Image) -> Image.Image:
        return ImageOps.expand(picture, self.padding)


class RandomHorizontalFlip:
    def __call__(self, picture: Image.Image) -> Image.Image:
        return ImageOps.mirror(picture) if torch.rand(1) < 0.5 else picture


class RandomCrop:
    def __init__(self, size: int, padding: int = 0) -> None:
        self.size, self.padding = size, padding

    def __call__(self, picture: Image.Image) -> Image.Image:
        picture = ImageOps.expand(picture, self.padding) if self.padding else picture
        left = int(torch.randint(0, picture.width - self.size + 1, (1,)))
        top = int(torch.randint(0, picture.height - self.size + 1, (1,)))
        return picture.crop((left, top, left + self.size, top + self.size))


class Grayscale:
    def __call__(self, picture: Image.Image) -> Image.Image:
        return picture.convert("L")


class Lambda:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, picture: Any) -> Any:
        return self.function(picture)
