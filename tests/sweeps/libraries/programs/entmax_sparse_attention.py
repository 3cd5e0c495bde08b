"""Sparse softmaxes of entmax in an attention that is trained."""

import torch
from entmax import entmax15, entmax15_loss, entmax_bisect, sparsemax

torch.manual_seed(0)
scores = torch.randn(3, 6, requires_grad=True)
for function in (sparsemax, entmax15):
    weights = function(scores, dim=-1)
    (weights * torch.arange(6.0)).sum().backward()
    print(function.__name__, int((weights == 0).sum()), f"{scores.grad.abs().sum().item():.5f}")
    scores.grad = None
alpha = torch.tensor(1.3, requires_grad=True)
bisected = entmax_bisect(scores, alpha=alpha)
bisected.square().sum().backward()
print(bisected.sum(-1), f"{alpha.grad.item():.5f}")
loss = entmax15_loss(scores, torch.tensor([0, 3, 5])).mean()
print(f"{loss.item():.6f}")
