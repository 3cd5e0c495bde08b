"""A stochastic differential equation sampled and differentiated."""

import torch
import torchsde

torch.manual_seed(0)


class Process(torch.nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self):
        super().__init__()
        self.drift, self.spread = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.tensor([0.2, 0.4]))

    def f(self, t, y):
        return self.drift(y)

    def g(self, t, y):
        return self.spread.expand_as(y)


process = Process()
start, times = torch.ones(4, 2), torch.linspace(0, 0.5, 4)
motion = torchsde.BrownianInterval(0.0, 0.5, size=(4, 2), entropy=7)
path = torchsde.sdeint(process, start, times, bm=motion, method="euler", dt=0.1)
path[-1].square().mean().backward()
print(path[-1], process.spread.grad)
