"""Advantages and a clipped PPO loss of torchrl."""

import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torchrl.modules import OneHotCategorical, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
policy = ProbabilisticTensorDictSequential(
    TensorDictModule(torch.nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"]),
    ProbabilisticTensorDictModule(
        in_keys=["logits"], out_keys=["action"], distribution_class=OneHotCategorical, return_log_prob=True
    ),
)
critic = ValueOperator(torch.nn.Linear(3, 1), in_keys=["observation"])
batch = policy(TensorDict({"observation": torch.randn(8, 3)}, [8])).detach()
following = {"observation": torch.randn(8, 3), "reward": torch.randn(8, 1)}
ends = torch.zeros(8, 1, dtype=torch.bool)
batch["next"] = TensorDict({**following, "done": ends, "terminated": ends}, [8])
GAE(gamma=0.9, lmbda=0.8, value_network=critic)(batch)
losses = ClipPPOLoss(policy, critic)(batch)
total = losses["loss_objective"] + losses["loss_critic"]
total.backward()
print(f"{total.item():.6f}", batch["advantage"].flatten())
