"""timm's optimizer factory, cosine schedule and moving average of weights."""

import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

torch.manual_seed(2)
model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Linear(24, 3))
optimizer = create_optimizer_v2(model, opt="lamb", lr=0.01, weight_decay=0.02)
schedule = CosineLRScheduler(optimizer, t_initial=6, warmup_t=2, warmup_lr_init=1e-4)
average = ModelEmaV3(model, decay=0.9)
mixup = Mixup(mixup_alpha=0.2, num_classes=3, label_smoothing=0.1)
criterion = SoftTargetCrossEntropy()
for epoch in range(6):
    inputs, targets = mixup(torch.randn(8, 3, 2, 2), torch.randint(0, 3, (8,)))
    loss = criterion(model(inputs.flatten(1)), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    schedule.step(epoch + 1)
    print(epoch, f"{loss.item():.6f}", f"{optimizer.param_groups[0]['lr']:.6f}")
