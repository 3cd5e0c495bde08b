"""Homographies, rotations and a warp whose angle is learnt."""

import kornia
import torch

torch.manual_seed(8)
image = kornia.filters.gaussian_blur2d(torch.rand(1, 1, 24, 24), (7, 7), (2.0, 2.0))
target = kornia.geometry.transform.rotate(image, torch.tensor([12.0]))
angle = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.Adam([angle], lr=1.0)
for step in range(6):
    optimizer.zero_grad()
    loss = (kornia.geometry.transform.rotate(image, angle) - target).square().mean()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.7f}", f"{angle.item():.4f}")
points = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
moved = points * 2.0 + 0.5
matrix = kornia.geometry.find_homography_dlt(points, moved)
print(matrix.round(decimals=3).tolist())
print(kornia.geometry.conversions.axis_angle_to_rotation_matrix(torch.tensor([[0.1, 0.2, 0.3]])))
