"""Nested batches of tensors with tensordict."""

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential

torch.manual_seed(0)
batch = TensorDict(
    {"observation": torch.randn(6, 4), "next": {"observation": torch.randn(6, 4)}}, batch_size=[6]
)
encode = TensorDictModule(torch.nn.Linear(4, 3), in_keys=["observation"], out_keys=["hidden"])
decode = TensorDictModule(torch.nn.Linear(3, 2), in_keys=["hidden"], out_keys=["action"])
policy = TensorDictSequential(encode, decode)
policy(batch)
batch["action"].sum().backward()
print(batch.shape, sorted(batch.keys()), f"{batch['action'].mean().item():.6f}")
stacked = torch.stack([batch[:2], batch[2:4]])
print(stacked.shape, tuple(stacked["next", "observation"].shape))
print(TensorDict.from_module(policy).apply(lambda t: t.abs().sum()).sum(reduce=True))
