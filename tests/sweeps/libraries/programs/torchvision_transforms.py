"""Transforms of torchvision on tensor images."""

import torch
from torchvision.transforms import v2

torch.manual_seed(4)
image = torch.randint(0, 256, (3, 40, 56), dtype=torch.uint8)
pipeline = v2.Compose(
    [
        v2.RandomResizedCrop((32, 32), antialias=True),
        v2.RandomHorizontalFlip(0.5),
        v2.ColorJitter(0.2, 0.2, 0.2, 0.1),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25]),
    ]
)
for index in range(3):
    changed = pipeline(image)
    print(index, tuple(changed.shape), f"{changed.mean().item():.5f}")
blurred = v2.functional.gaussian_blur(image, [5, 5], [1.5, 1.5])
rotated = v2.functional.rotate(image, 30.0)
print(blurred.float().mean().item(), rotated.float().mean().item())
