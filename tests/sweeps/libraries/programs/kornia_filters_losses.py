"""Edges, morphology, colour spaces and losses of kornia."""

import kornia
import torch

torch.manual_seed(9)
image = torch.rand(2, 3, 20, 20)
gray = kornia.color.rgb_to_grayscale(image)
magnitude, edges = kornia.filters.canny(gray)
print(f"{magnitude.mean().item():.6f}", int(edges.sum()))
opened = kornia.morphology.opening(gray, torch.ones(3, 3))
lab = kornia.color.rgb_to_lab(image)
print(f"{opened.mean().item():.6f}", f"{lab.mean().item():.5f}")
other = torch.rand(2, 3, 20, 20, requires_grad=True)
loss = kornia.losses.ssim_loss(image, other, 5) + kornia.losses.total_variation(other).mean()
loss.backward()
print(f"{loss.item():.6f}", f"{other.grad.abs().mean().item():.6f}")
corners = kornia.feature.harris_response(gray)
print(f"{corners.max().item():.6f}")
