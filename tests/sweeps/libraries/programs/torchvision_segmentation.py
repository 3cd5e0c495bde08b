"""A DeepLab of torchvision with random weights."""

import torch
import torchvision

torch.manual_seed(6)
model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
    weights=None, weights_backbone=None, num_classes=4
).eval()
images = torch.randn(1, 3, 64, 64)
with torch.no_grad():
    found = model(images)["out"]
classes, counts = found.argmax(1).unique(return_counts=True)
print(tuple(found.shape), classes.tolist(), counts.tolist())
grid = torchvision.utils.make_grid(torch.rand(4, 3, 8, 8), nrow=2)
drawn = torchvision.utils.draw_segmentation_masks(
    torch.zeros(3, 64, 64, dtype=torch.uint8), found.argmax(1)[0] == 0, alpha=0.5, colors="blue"
)
print(tuple(grid.shape), int(drawn.sum()))
