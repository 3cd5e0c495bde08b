"""A conditional neural spline flow of zuko."""

import torch
import zuko

torch.manual_seed(0)
flow = zuko.flows.NSF(features=2, context=3, transforms=2, hidden_features=(16, 16))
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
x, context = torch.randn(16, 2), torch.randn(16, 3)
for step in range(3):
    loss = -flow(context).log_prob(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
with torch.no_grad():
    print(flow(context[0]).sample((3,)))
