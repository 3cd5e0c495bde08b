"""EfficientNet-B0 with random weights."""

import torch
from efficientnet_pytorch import EfficientNet

torch.manual_seed(0)
model = EfficientNet.from_name("efficientnet-b0", num_classes=4, image_size=32)
model.set_swish(memory_efficient=True)
images = torch.randn(2, 3, 32, 32)
loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 3]))
loss.backward()
print(f"{loss.item():.6f}", f"{model._fc.weight.grad.norm().item():.6f}")
model.eval()
with torch.no_grad():
    print(tuple(model.extract_features(images).shape), model(images).argmax(1))
