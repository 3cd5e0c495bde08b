"""Five optimizers of torch-optimizer on the same valley."""

import torch
import torch_optimizer

torch.manual_seed(0)
makers = {
    "AdaBound": lambda p: torch_optimizer.AdaBound(p, lr=0.05),
    "DiffGrad": lambda p: torch_optimizer.DiffGrad(p, lr=0.05),
    "Lookahead": lambda p: torch_optimizer.Lookahead(torch_optimizer.Yogi(p, lr=0.05), k=2),
    "NovoGrad": lambda p: torch_optimizer.NovoGrad(p, lr=0.05),
    "QHAdam": lambda p: torch_optimizer.QHAdam(p, lr=0.05),
}
for name, make in makers.items():
    point = torch.nn.Parameter(torch.tensor([[-1.5, 1.0]]))
    optimizer = make([point])
    for _ in range(4):
        optimizer.zero_grad()
        x, y = point[0]
        valley = (1 - x) ** 2 + 10 * (y - x**2) ** 2
        valley.backward()
        optimizer.step()
    print(name, f"{valley.item():.5f}", point.detach())
