"""Gradients of each sample by opacus, beside those of torch.func."""

import copy

import torch
from opacus import GradSampleModule
from torch.func import functional_call, grad, vmap

torch.manual_seed(1)
layer = torch.nn.Sequential(
    torch.nn.Conv1d(2, 3, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(18, 1)
)
inputs = torch.randn(5, 2, 8)
wrapped = GradSampleModule(copy.deepcopy(layer))
wrapped(inputs).sum().backward()
found = {name: parameter.grad_sample for name, parameter in wrapped._module.named_parameters()}


def single(parameters, sample):
    return functional_call(layer, parameters, (sample[None],)).sum()


parameters = {name: p.detach() for name, p in layer.named_parameters()}
expected = vmap(grad(single), in_dims=(None, 0))(parameters, inputs)
for name in expected:
    print(name, tuple(found[name].shape), torch.allclose(found[name], expected[name], atol=1e-5))
