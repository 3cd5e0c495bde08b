"""A prioritised replay buffer and networks of torchrl."""

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, ConvNet

torch.manual_seed(1)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
buffer.extend(TensorDict({"x": torch.arange(12.0)[:, None], "y": torch.randn(12, 2)}, [12]))
drawn = buffer.sample()
print(len(buffer), sorted(drawn.keys())[:3], tuple(drawn["y"].shape), drawn["x"].flatten())
net = torch.nn.Sequential(
    ConvNet(in_features=1, num_cells=[4, 4], kernel_sizes=3), MLP(out_features=2, num_cells=[8])
)
out = net(torch.randn(2, 1, 10, 10))
out.sum().backward()
print(out)
