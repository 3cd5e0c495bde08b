"""Regression, image and retrieval metrics."""

import torch
from torchmetrics.functional.image import structural_similarity_index_measure
from torchmetrics.image import PeakSignalNoiseRatio
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef, R2Score
from torchmetrics.retrieval import RetrievalMAP

torch.manual_seed(1)
wanted = torch.randn(64)
found = wanted + 0.3 * torch.randn(64)
for metric in (MeanSquaredError(), PearsonCorrCoef(), R2Score()):
    for part in range(2):
        metric.update(found[part * 32 : part * 32 + 32], wanted[part * 32 : part * 32 + 32])
    print(type(metric).__name__, f"{metric.compute().item():.6f}")
image = torch.rand(2, 3, 24, 24)
noisy = (image + 0.05 * torch.randn_like(image)).clamp(0, 1)
psnr = PeakSignalNoiseRatio(data_range=1.0)
print(f"{psnr(noisy, image).item():.5f}")
print(f"{structural_similarity_index_measure(noisy, image, data_range=1.0).item():.6f}")
ranking = RetrievalMAP()
print(ranking(torch.rand(12), torch.rand(12) > 0.6, indexes=torch.arange(12) // 4))
