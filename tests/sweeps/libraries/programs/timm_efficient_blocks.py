"""A MobileNet of timm in training mode with drop path, then evaluated."""

import timm
import torch

torch.manual_seed(3)
model = timm.create_model("mobilenetv3_small_050", num_classes=5, drop_path_rate=0.2)
images = torch.randn(4, 3, 64, 64)
model.train()
with torch.no_grad():
    warm = model(images)
model.eval()
with torch.inference_mode():
    scores = model(images)
print(f"{warm.sum().item():.5f}", f"{scores.sum().item():.5f}", scores.argmax(1).tolist())
