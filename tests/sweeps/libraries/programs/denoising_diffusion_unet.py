"""A diffusion model of denoising-diffusion-pytorch: one loss and a short sampling."""

import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Unet

torch.manual_seed(0)
model = Unet(dim=8, dim_mults=(1, 2), flash_attn=False)
diffusion = GaussianDiffusion(model, image_size=16, timesteps=20, sampling_timesteps=3)
optimizer = torch.optim.Adam(diffusion.parameters(), lr=1e-3)
for step in range(2):
    loss = diffusion(torch.rand(2, 3, 16, 16))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, f"{loss.item():.6f}")
images = diffusion.sample(batch_size=1)
print(tuple(images.shape), f"{images.mean().item():.5f}")
