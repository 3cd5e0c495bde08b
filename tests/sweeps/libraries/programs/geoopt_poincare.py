"""Distances and maps of the Poincare ball."""

import geoopt
import torch

torch.manual_seed(1)
ball = geoopt.PoincareBall(c=1.0)
x = ball.expmap0(0.3 * torch.randn(5, 3))
y = ball.expmap0(0.3 * torch.randn(5, 3))
print(ball.dist(x, y))
print(ball.logmap(x, y).norm(dim=-1))
middle = ball.geodesic(torch.tensor(0.5), x, y)
print(torch.allclose(ball.dist(x, middle), ball.dist(middle, y), atol=1e-5))
print(ball.mobius_matvec(torch.randn(3, 3), x).sum())
