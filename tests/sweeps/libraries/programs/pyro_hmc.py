"""A few samples of Hamiltonian Monte Carlo."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import HMC, MCMC

pyro.set_rng_seed(1)
data = torch.tensor([1.0, 1.2, 0.8, 1.1, 0.9])


def model(data):
    centre = pyro.sample("centre", dist.Normal(0.0, 5.0))
    pyro.sample("obs", dist.Normal(centre, 0.5).expand([5]).to_event(1), obs=data)


sampler = MCMC(
    HMC(model, step_size=0.1, num_steps=3, adapt_step_size=False),
    num_samples=5,
    warmup_steps=2,
    disable_progbar=True,
)
sampler.run(data)
print(sampler.get_samples()["centre"])
