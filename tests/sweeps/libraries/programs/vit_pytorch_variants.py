"""Vision transformers of vit-pytorch: plain, simple and deep."""

import torch
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.deepvit import DeepViT

torch.manual_seed(0)
images = torch.randn(2, 3, 32, 32)
for kind in (ViT, SimpleViT):
    model = kind(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48)
    loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 4]))
    loss.backward()
    print(kind.__name__, f"{loss.item():.6f}")
deep = DeepViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48).eval()
with torch.no_grad():
    print(deep(images))
