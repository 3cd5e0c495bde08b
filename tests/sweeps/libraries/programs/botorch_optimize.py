"""One step of Bayesian optimisation with botorch."""

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

torch.manual_seed(0)
x = torch.rand(8, 2, dtype=torch.double)
y = -(x - 0.4).square().sum(-1, keepdim=True)
model = SingleTaskGP(x, y)
fit_gpytorch_mll(
    ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 5}}
)
acquisition = LogExpectedImprovement(model, best_f=y.max())
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
candidate, value = optimize_acqf(
    acquisition, bounds, q=1, num_restarts=2, raw_samples=8, options={"maxiter": 4}
)
print(candidate, value)
