"""Boxes, masks and images that are transformed together."""

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

torch.manual_seed(5)
image = tv_tensors.Image(torch.rand(3, 32, 32))
boxes = tv_tensors.BoundingBoxes(
    torch.tensor([[2.0, 4.0, 20.0, 18.0], [5.0, 5.0, 30.0, 31.0]]), format="XYXY", canvas_size=(32, 32)
)
mask = tv_tensors.Mask(torch.rand(2, 32, 32) > 0.5)
pipeline = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize((16, 24), antialias=True)])
new_image, new_boxes, new_mask = pipeline(image, boxes, mask)
print(type(new_image).__name__, tuple(new_image.shape), f"{new_image.mean().item():.5f}")
print(type(new_boxes).__name__, new_boxes.canvas_size, new_boxes.tolist())
print(type(new_mask).__name__, int(new_mask.sum()))
