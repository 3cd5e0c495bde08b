"""Vision transformers of vit-pytorch: plain, with distillation, and masked."""

import torch
from vit_pytorch import MAE, SimpleViT, ViT

torch.manual_seed(0)
images = torch.randn(2, 3, 32, 32)
for kind in (ViT, SimpleViT):
    model = kind(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48)
    loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 4]))
    loss.backward()
    print(kind.__name__, f"{loss.item():.6f}")
encoder = ViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=1, heads=2, mlp_dim=48)
masked = MAE(encoder=encoder, masking_ratio=0.5, decoder_dim=16, decoder_depth=1)
loss = masked(images)
loss.backward()
print(f"{loss.item():.6f}")
