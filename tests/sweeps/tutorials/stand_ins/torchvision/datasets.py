"""Small data sets of random pictures under the names that tutorials download."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image


class _Pictures(torch.utils.data.Dataset[Any]):
    shape: tuple[int, ...] = (28, 28)
    classes: ClassVar[list[str]] = [str(index) for index in range(10)]

    def __init__(
        self,
        root: Any = None,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
        **ignored: Any,
    ) -> None:
        count = int(os.environ.get("TUTORIAL_PICTURES", "256")) // (1 if train else 2)
        source = np.random.default_rng(0 if train else 1)
        pixels = source.integers(0, 256, (count, *self.shape), dtype=np.uint8)
        labels = source.integers(0, len(self.classes), count)
        self.data: Any = pixels if len(self.shape) == 3 else torch.from_numpy(pixels)
        self.targets: Any = labels.tolist() if len(self.shape) == 3 else torch.from_numpy(labels)
        self.transform, self.target_transform, self.train = transform, target_transform, train
        self.train_data = self.test_data = self.data
        self.train_labels = self.test_labels = self.targets

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture: Any = Image.fromarray(np.asarray(self.data[index]))
        label: Any = int(self.targets[index])
        if self.transform is not None:
            picture = self.transform(picture)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return picture, label


class MNIST(_Pictures):
    pass


class FashionMNIST(_Pictures):
    pass


class CIFAR10(_Pictures):
    shape = (32, 32, 3)


class CIFAR100(CIFAR10):
    classes: ClassVar[list[str]] = [str(index) for index in range(100)]


class FakeData(torch.utils.data.Dataset[Any]):
    def __init__(
        self,
        size: int = 64,
        image_size: tuple[int, ...] = (3, 64, 64),
        num_classes: int = 10,
        transform: Callable[[Any], Any] | None = None,
        **ignored: Any,
    ) -> None:
        self._count, self._shape, self._classes, self._transform = 64, image_size, num_classes, transform

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        source = np.random.default_rng(index)
        channels, height, width = self._shape
        picture: Any = Image.fromarray(source.integers(0, 256, (height, width, channels), dtype=np.uint8))
        picture = self._transform(picture) if self._transform is not None else picture
        return picture, int(source.integers(0, self._classes))
