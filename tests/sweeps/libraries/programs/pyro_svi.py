"""Stochastic variational inference of a linear model."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO

pyro.clear_param_store()
pyro.set_rng_seed(0)
x = torch.linspace(-1, 1, 30)
y = 1.5 * x - 0.3 + 0.1 * torch.randn(30)


def model(x, y=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
    offset = pyro.sample("offset", dist.Normal(0.0, 2.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Normal(slope * x + offset, noise), obs=y)


def guide(x, y=None):
    """One parameter: pyro keeps several in a set, whose order depends on addresses."""
    place = pyro.param("place", torch.tensor([0.0, 0.0, -1.0]))
    pyro.sample("slope", dist.Normal(place[0], 0.1))
    pyro.sample("offset", dist.Normal(place[1], 0.1))
    pyro.sample("noise", dist.LogNormal(place[2], 0.1))


svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
for step in range(10):
    print(step, f"{svi.step(x, y):.5f}")
print(pyro.param("place"))
