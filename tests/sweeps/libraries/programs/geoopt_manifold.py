"""Optimisation on a sphere and a Stiefel manifold."""

import geoopt
import torch

torch.manual_seed(0)
target = torch.randn(6)
target = target / target.norm()
sphere = geoopt.Sphere()
point = geoopt.ManifoldParameter(sphere.projx(torch.randn(6)), manifold=sphere)
optimizer = geoopt.optim.RiemannianSGD([point], lr=0.3)
for step in range(4):
    optimizer.zero_grad()
    loss = (point - target).square().sum()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}", f"{point.norm().item():.6f}")
stiefel = geoopt.Stiefel()
frame = geoopt.ManifoldParameter(stiefel.projx(torch.randn(5, 2)), manifold=stiefel)
adam = geoopt.optim.RiemannianAdam([frame], lr=0.1)
matrix = torch.randn(5, 5)
matrix = matrix @ matrix.T
for _ in range(3):
    adam.zero_grad()
    trace = -(frame.T @ matrix @ frame).trace()
    trace.backward()
    adam.step()
    print(f"{trace.item():.5f}")
