"""BYOL with a momentum encoder, and the losses of VICReg and Barlow twins."""

import copy

import torch
from lightly.loss import BarlowTwinsLoss, NegativeCosineSimilarity, VICRegLoss
from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
from lightly.models.utils import deactivate_requires_grad, update_momentum

torch.manual_seed(1)
projection, prediction = BYOLProjectionHead(10, 16, 8), BYOLPredictionHead(8, 16, 8)
target = copy.deepcopy(projection)
deactivate_requires_grad(target)
optimizer = torch.optim.SGD([*projection.parameters(), *prediction.parameters()], lr=0.05)
cosine = NegativeCosineSimilarity()
for step in range(3):
    update_momentum(projection, target, m=0.95)
    first, second = torch.randn(8, 10), torch.randn(8, 10)
    loss = cosine(prediction(projection(first)), target(second).detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
a, b = torch.randn(8, 6), torch.randn(8, 6)
print(f"{VICRegLoss()(a, b).item():.6f}", f"{BarlowTwinsLoss()(a, b).item():.6f}")
