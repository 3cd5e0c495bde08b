"""Real NVP of normflows fitted to two moons."""

import normflows as nf
import torch

torch.manual_seed(0)
base = nf.distributions.base.DiagGaussian(2)
layers = []
for _ in range(4):
    net = nf.nets.MLP([1, 8, 2], init_zeros=True)
    layers += [nf.flows.AffineCouplingBlock(net), nf.flows.Permute(2, mode="swap")]
model = nf.NormalizingFlow(base, layers)
target = nf.distributions.TwoMoons()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    optimizer.zero_grad()
    loss = model.forward_kld(target.sample(32))
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
samples, density = model.sample(4)
print(samples, density)
