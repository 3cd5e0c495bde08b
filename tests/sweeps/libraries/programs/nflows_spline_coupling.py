"""Rational quadratic splines in coupling layers."""

import torch
from nflows.nn.nets import ResidualNet
from nflows.transforms import PiecewiseRationalQuadraticCouplingTransform

torch.manual_seed(1)
layer = PiecewiseRationalQuadraticCouplingTransform(
    mask=torch.tensor([1, -1, 1]),
    transform_net_create_fn=lambda i, o: ResidualNet(i, o, hidden_features=8, num_blocks=1),
    tails="linear",
    tail_bound=3.0,
)
inputs = torch.randn(10, 3)
out, determinant = layer(inputs)
back, inverse = layer.inverse(out)
(out.square().sum() - determinant.sum()).backward()
print(torch.allclose(back, inputs, atol=1e-4), torch.allclose(determinant, -inverse, atol=1e-4))
print(f"{determinant.sum().item():.6f}")
