"""Feature maps of a timm ResNet, and its classifier replaced."""

import timm
import torch

torch.manual_seed(1)
model = timm.create_model("resnet10t", features_only=True).eval()
images = torch.randn(2, 3, 64, 64)
with torch.no_grad():
    maps = model(images)
for found in maps:
    print(tuple(found.shape), f"{found.mean().item():.6f}", f"{found.std().item():.6f}")
classifier = timm.create_model("resnet10t", num_classes=4)
classifier.reset_classifier(7)
classifier.train()
logits = classifier(images)
logits.square().mean().backward()
gradients = sum(p.grad.abs().sum() for p in classifier.parameters() if p.grad is not None)
print(tuple(logits.shape), f"{gradients.item():.4f}")
