"""ArcFace, its own optimizer, and a cross-batch memory."""

import torch
from pytorch_metric_learning import losses

torch.manual_seed(1)
net = torch.nn.Linear(6, 5)
arcface = losses.ArcFaceLoss(num_classes=3, embedding_size=5)
memory = losses.CrossBatchMemory(losses.ContrastiveLoss(), embedding_size=5, memory_size=16)
optimizer = torch.optim.SGD([*net.parameters(), *arcface.parameters()], lr=0.05)
for step in range(4):
    inputs, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
    embedded = net(inputs)
    loss = arcface(embedded, labels) + memory(embedded, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
