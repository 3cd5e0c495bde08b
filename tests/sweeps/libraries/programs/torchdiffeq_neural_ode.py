"""A neural ODE trained through the solver and through the adjoint."""

import torch
from torchdiffeq import odeint, odeint_adjoint

torch.manual_seed(1)


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def forward(self, t, y):
        return self.net(y)


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=0.01)
start, times = torch.tensor([[1.0, 0.5]]), torch.linspace(0, 1, 5)
wanted = torch.stack([start * torch.exp(-t) for t in times])
for solve in (odeint, odeint_adjoint):
    for _ in range(2):
        optimizer.zero_grad()
        loss = (solve(field, start, times, method="rk4") - wanted).abs().mean()
        loss.backward()
        optimizer.step()
        print(solve.__name__, f"{loss.item():.6f}")
