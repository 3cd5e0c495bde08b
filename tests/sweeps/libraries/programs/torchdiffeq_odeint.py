"""An ordinary differential equation solved forwards."""

import torch
from torchdiffeq import odeint

torch.manual_seed(0)
matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
times = torch.linspace(0, 2, 9)
start = torch.tensor([[2.0, 0.0]])
for method in ("euler", "rk4", "dopri5"):
    with torch.no_grad():
        path = odeint(lambda t, y: y.pow(3) @ matrix, start, times, method=method)
    print(method, path[-1])
