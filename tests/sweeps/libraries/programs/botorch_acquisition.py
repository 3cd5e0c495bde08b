"""Posterior samples and Monte Carlo acquisition values."""

import torch
from botorch.acquisition import qExpectedImprovement, qUpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler

x = torch.linspace(0, 1, 6, dtype=torch.double)[:, None]
model = SingleTaskGP(x, torch.sin(5 * x))
sampler = SobolQMCNormalSampler(torch.Size([16]), seed=3)
points = torch.tensor([[[0.15], [0.55]], [[0.3], [0.9]]], dtype=torch.double)
with torch.no_grad():
    print(model.posterior(points).mean.squeeze(-1))
    print(qExpectedImprovement(model, best_f=0.9, sampler=sampler)(points))
    print(qUpperConfidenceBound(model, beta=0.2, sampler=sampler)(points))
