"""A codebook with moving averages and a residual quantiser."""

import torch
from vector_quantize_pytorch import FSQ, ResidualVQ, VectorQuantize

torch.manual_seed(0)
quantiser = VectorQuantize(dim=8, codebook_size=16, decay=0.8, commitment_weight=1.0)
for step in range(3):
    quantised, indices, loss = quantiser(torch.randn(2, 10, 8))
    print(step, f"{loss.item():.6f}", indices[0].tolist())
residual = ResidualVQ(dim=8, codebook_size=8, num_quantizers=2)
quantised, indices, losses = residual(torch.randn(1, 6, 8))
print(tuple(indices.shape), f"{losses.sum().item():.6f}")
finite = FSQ(levels=[5, 4, 3])
codes, chosen = finite(torch.randn(1, 6, 3))
print(chosen)
