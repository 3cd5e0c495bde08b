"""An equivariant layer of e3nn and its rotation."""

import torch
from e3nn import o3

torch.manual_seed(0)
layer = o3.Linear("4x0e + 2x1o", "3x0e + 2x1o")
irreps = o3.Irreps("4x0e + 2x1o")
x = irreps.randn(5, -1)
rotation = o3.rand_matrix()
left = layer(x @ irreps.D_from_matrix(rotation).T)
right = layer(x) @ layer.irreps_out.D_from_matrix(rotation).T
print(tuple(left.shape), torch.allclose(left, right, atol=1e-4))
harmonics = o3.spherical_harmonics([0, 1, 2], torch.randn(4, 3), normalize=True)
print(tuple(harmonics.shape), f"{harmonics.sum().item():.5f}")
