"""SimCLR of lightly: two views, a projection head and the contrastive loss."""

import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead

torch.manual_seed(0)
backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))
head, criterion = SimCLRProjectionHead(8, 16, 8), NTXentLoss(temperature=0.5)
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
for step in range(3):
    images = torch.rand(6, 3, 16, 16)
    views = images + 0.1 * torch.randn_like(images), images.flip(-1)
    loss = criterion(*(head(backbone(view).flatten(1)) for view in views))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
