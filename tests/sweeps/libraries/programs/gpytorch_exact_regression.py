"""An exact Gaussian process, its hyperparameters fitted."""

import gpytorch
import torch

torch.manual_seed(0)
train_x = torch.linspace(0, 1, 20)
train_y = torch.sin(6 * train_x) + 0.1 * torch.randn(20)


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Process(train_x, train_y, likelihood)
model.train()
likelihood.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for step in range(8):
    optimizer.zero_grad()
    loss = -objective(model(train_x), train_y)
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.5f}")
model.eval()
likelihood.eval()
with torch.no_grad():
    predicted = likelihood(model(torch.linspace(0, 1, 7)))
    print(predicted.mean, predicted.variance)
