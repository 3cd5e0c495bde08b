"""A selective state space layer in plain torch, trained to copy."""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat

torch.manual_seed(0)


class SelectiveLayer(torch.nn.Module):
    def __init__(self, width=16, state=4):
        super().__init__()
        self.mix = torch.nn.Linear(width, 2 * width)
        self.conv = torch.nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.project = torch.nn.Linear(width, 2 * state + 1)
        self.rates = torch.nn.Parameter(torch.log(repeat(torch.arange(1.0, state + 1), "n -> d n", d=width)))
        self.out = torch.nn.Linear(width, width)

    def forward(self, x):
        x, gate = self.mix(x).chunk(2, -1)
        x = F.silu(rearrange(self.conv(rearrange(x, "b t d -> b d t")), "b d t -> b t d")[:, : x.shape[1]])
        delta, b, c = self.project(x).split([1, 4, 4], -1)
        delta = F.softplus(delta)
        decay = torch.exp(-delta[..., None] * self.rates.exp())
        entering = delta[..., None] * x[..., None] * b[:, :, None]
        state, outs = torch.zeros_like(entering[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + entering[:, t]
            outs.append((state * c[:, t, None]).sum(-1))
        return self.out(torch.stack(outs, 1) * F.silu(gate))


layer = SelectiveLayer()
optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
inputs = torch.randn(2, 8, 16)
for step in range(3):
    loss = F.mse_loss(layer(inputs), inputs.roll(1, 1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    print(step, f"{loss.item():.6f}")
