"""A masked autoregressive flow of nflows."""

import torch
from nflows.distributions.normal import StandardNormal
from nflows.flows import Flow
from nflows.transforms import CompositeTransform, MaskedAffineAutoregressiveTransform, ReversePermutation

torch.manual_seed(0)
steps = []
for _ in range(2):
    steps += [
        ReversePermutation(features=2),
        MaskedAffineAutoregressiveTransform(features=2, hidden_features=8),
    ]
flow = Flow(CompositeTransform(steps), StandardNormal([2]))
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
data = torch.randn(32, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.7]]) + 1
for step in range(4):
    optimizer.zero_grad()
    loss = -flow.log_prob(data).mean()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
with torch.no_grad():
    print(flow.sample(3))
