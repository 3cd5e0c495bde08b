"""A continuous normalising flow and a Gaussian mixture of zuko."""

import torch
import zuko

torch.manual_seed(1)
flow = zuko.flows.CNF(features=2, hidden_features=(8,), freqs=2)
with torch.no_grad():
    print(flow().log_prob(torch.randn(4, 2)))
mixture = zuko.flows.GMM(features=2, components=3)
loss = -mixture().log_prob(torch.randn(8, 2)).mean()
loss.backward()
print(f"{loss.item():.6f}", f"{sum(p.grad.abs().sum() for p in mixture.parameters()).item():.6f}")
