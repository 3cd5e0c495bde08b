"""Lion of lion-pytorch on a small network."""

import torch
from lion_pytorch import Lion

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(5, 10), torch.nn.SiLU(), torch.nn.Linear(10, 1))
optimizer = Lion(model.parameters(), lr=1e-3, weight_decay=1e-2)
inputs = torch.randn(16, 5)
targets = inputs.prod(1, keepdim=True)
for step in range(5):
    loss = torch.nn.functional.huber_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    print(step, f"{loss.item():.6f}")
