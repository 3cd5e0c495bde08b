"""Attributions of captum for a small network."""

import torch
from captum.attr import DeepLift, IntegratedGradients, NoiseTunnel, Saliency

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3)).eval()
inputs, base = torch.randn(4, 6), torch.zeros(4, 6)
gradients = IntegratedGradients(model)
attributed, delta = gradients.attribute(inputs, base, target=1, n_steps=10, return_convergence_delta=True)
print(attributed.sum(0), delta.abs().max())
print(Saliency(model).attribute(inputs.clone(), target=0).mean(0))
print(DeepLift(model).attribute(inputs, base, target=2).sum(0))
tunnel = NoiseTunnel(Saliency(model))
print(tunnel.attribute(inputs.clone(), nt_samples=3, stdevs=0.1, target=0).mean())
