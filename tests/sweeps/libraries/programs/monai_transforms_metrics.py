"""Transforms and metrics of monai on its own tensors."""

import torch
from monai.metrics import DiceMetric
from monai.transforms import AsDiscrete, Compose, NormalizeIntensity, RandFlip, Resize, ScaleIntensity
from monai.utils import set_determinism

set_determinism(3)
pipeline = Compose(
    [ScaleIntensity(), RandFlip(prob=0.5, spatial_axis=0), Resize((10, 10)), NormalizeIntensity()]
)
for _ in range(3):
    changed = pipeline(torch.rand(1, 16, 16))
    print(type(changed).__name__, tuple(changed.shape), f"{float(changed.std()):.5f}")
metric = DiceMetric(include_background=False)
binary = AsDiscrete(threshold=0.5)
metric(binary(torch.rand(2, 2, 8, 8)), binary(torch.rand(2, 2, 8, 8)))
print(f"{metric.aggregate().item():.6f}")
set_determinism(None)
