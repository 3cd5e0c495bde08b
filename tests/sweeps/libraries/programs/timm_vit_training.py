"""A small vision transformer of timm, trained for three steps."""

import timm
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, num_classes=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
for step in range(3):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
model.eval()
with torch.no_grad():
    scores = model(images).softmax(-1)
print(scores.argmax(-1))
