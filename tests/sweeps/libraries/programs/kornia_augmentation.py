"""Augmentations of kornia with their parameters kept."""

import kornia.augmentation as K
import torch

torch.manual_seed(7)
pipeline = K.AugmentationSequential(
    K.RandomAffine(degrees=20.0, translate=(0.1, 0.1), p=1.0),
    K.RandomHorizontalFlip(p=0.5),
    K.ColorJiggle(0.1, 0.1, 0.1, 0.1, p=1.0),
    data_keys=["input", "mask"],
)
images, masks = torch.rand(3, 3, 24, 24), (torch.rand(3, 1, 24, 24) > 0.5).float()
new_images, new_masks = pipeline(images, masks)
print(tuple(new_images.shape), f"{new_images.mean().item():.6f}", f"{new_masks.mean().item():.6f}")
