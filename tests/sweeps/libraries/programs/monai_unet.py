"""A three-dimensional U-Net of monai with the Dice loss and a sliding window."""

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.networks.nets import UNet

torch.manual_seed(0)
model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,), num_res_units=1)
criterion = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
volume, label = torch.rand(1, 1, 12, 12, 12), torch.randint(0, 2, (1, 1, 12, 12, 12)).float()
for step in range(2):
    optimizer.zero_grad()
    loss = criterion(model(volume), label)
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")
model.eval()
with torch.no_grad():
    found = sliding_window_inference(volume, (8, 8, 8), 2, model)
print(tuple(found.shape), f"{found.mean().item():.6f}")
