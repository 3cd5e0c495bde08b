"""Metrics of torchmetrics, accumulated over batches."""

import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

torch.manual_seed(0)
metrics = MetricCollection(
    {
        "accuracy": MulticlassAccuracy(4),
        "f1": MulticlassF1Score(4, average="macro"),
        "auroc": MulticlassAUROC(4, thresholds=20),
        "confusion": MulticlassConfusionMatrix(4),
    }
)
for _ in range(3):
    scores, labels = torch.randn(16, 4).softmax(-1), torch.randint(0, 4, (16,))
    step = metrics(scores, labels)
    print(f"{step['accuracy'].item():.4f}")
for name, value in metrics.compute().items():
    print(name, value.tolist())
metrics.reset()
