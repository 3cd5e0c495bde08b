"""Layer attributions, occlusion and feature ablation."""

import torch
from captum.attr import FeatureAblation, LayerConductance, LayerGradCam, Occlusion

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(16, 2),
).eval()
images = torch.randn(2, 1, 8, 8)
print(LayerGradCam(model, model[0]).attribute(images, target=1).mean((1, 2, 3)))
print(LayerConductance(model, model[2]).attribute(images, target=0, n_steps=5).sum())
occluded = Occlusion(model).attribute(images, sliding_window_shapes=(1, 4, 4), strides=(1, 4, 4), target=0)
print(occluded.abs().sum((1, 2, 3)))
groups = (torch.arange(64).reshape(1, 1, 8, 8) // 16).long()
print(FeatureAblation(model).attribute(images, target=1, feature_mask=groups).flatten(1).unique(dim=1))
