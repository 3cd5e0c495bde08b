"""A ResNet-18 of torchvision with random weights: two steps of SGD and an evaluation."""

import torch
import torchvision

torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
images, labels = torch.randn(4, 3, 48, 48), torch.tensor([0, 2, 4, 5])
for _ in range(2):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
model.eval()
with torch.no_grad():
    print(model(images).softmax(1).max(1))
