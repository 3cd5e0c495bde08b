"""A U-Net of segmentation-models-pytorch with two losses."""

import segmentation_models_pytorch as smp
import torch

torch.manual_seed(0)
model = smp.Unet(
    encoder_name="mobilenet_v2",
    encoder_weights=None,
    encoder_depth=3,
    decoder_channels=(32, 16, 8),
    classes=2,
)
dice, focal = smp.losses.DiceLoss("multiclass"), smp.losses.FocalLoss("multiclass")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
images, masks = torch.randn(2, 3, 32, 32), torch.randint(0, 2, (2, 32, 32))
for step in range(2):
    found = model(images)
    loss = dice(found, masks) + focal(found, masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
counts = smp.metrics.get_stats(found.argmax(1), masks, mode="multiclass", num_classes=2)
print(f"{smp.metrics.iou_score(*counts, reduction='micro').item():.5f}")
