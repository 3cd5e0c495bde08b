"""A tensor product and a gate of e3nn, trained for two steps."""

import torch
from e3nn import o3
from e3nn.nn import Gate

torch.manual_seed(1)
gate = Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
product = o3.FullyConnectedTensorProduct("2x0e + 1x1o", "1x0e + 1x1o", gate.irreps_in)
optimizer = torch.optim.Adam(product.parameters(), lr=0.01)
x, y = torch.randn(6, 5), torch.randn(6, 4)
for _ in range(2):
    optimizer.zero_grad()
    out = gate(product(x, y))
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    print(tuple(out.shape), f"{loss.item():.6f}")
