"""A sparse variational Gaussian process classifier."""

import gpytorch
import torch

torch.manual_seed(1)


class Classifier(gpytorch.models.ApproximateGP):
    def __init__(self, inducing):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(inducing.size(0))
        strategy = gpytorch.variational.VariationalStrategy(self, inducing, distribution)
        super().__init__(strategy)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


x = torch.rand(40, 1)
y = (x[:, 0] > 0.5).float()
model, likelihood = Classifier(x[:8]), gpytorch.likelihoods.BernoulliLikelihood()
objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=40)
optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    loss = -objective(model(x), y)
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.5f}")
model.eval()
with torch.no_grad():
    print(likelihood(model(torch.tensor([[0.1], [0.9]]))).probs)
