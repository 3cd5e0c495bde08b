"""What people do with autograd besides backward(), and mixed precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from equality import check_cell, difference
from in_process import cell
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from djinn_lab.capture.recorders import Recorder

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.*` is deprecated:FutureWarning"),
]


def _step(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


def test_hooks_see_and_change_what_flows(recorder: Recorder) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def run(network: nn.Sequential, x: torch.Tensor) -> list[Any]:
        seen: list[Any] = []
        handles = [
            network[0].register_forward_hook(lambda module, inputs, output: output * 2),
            network[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,)),
            network[1].register_full_backward_hook(
                lambda module, before, after: seen.append(after[0].clone())
            ),
            network[2].register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 3,)),
            network[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1)),
            network[2].weight.register_post_accumulate_grad_hook(lambda item: seen.append(item.grad.norm())),
        ]
        hidden = network[0](x)
        hidden.retain_grad()
        hidden.register_hook(lambda gradient: gradient * 0.5)
        _step(network[2](network[1](hidden)).sum())
        for handle in handles:
            handle.remove()
        return [*seen, hidden.grad, hidden]

    check_cell(recorder, run, network, torch.randn(5, 3))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing(use_reentrant: bool, recorder: Recorder) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))

    def run(network: nn.Module) -> torch.Tensor:
        x = torch.randn(3, 4, requires_grad=True)
        returned = checkpoint(network, x, use_reentrant=use_reentrant)
        return _step(returned.square().mean())

    check_cell(recorder, run, network)


def test_custom_autograd_function(recorder: Recorder) -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 3 * ctx.saved_tensors[0] ** 2

    def run(x: torch.Tensor) -> Any:
        y = Cube.apply(x).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)[0]

    check_cell(recorder, run, torch.randn(4, requires_grad=True))


def test_torch_func(recorder: Recorder) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def run(network: nn.Module, x: torch.Tensor) -> Any:
        parameters = dict(network.named_parameters())

        def loss(parameters: dict[str, torch.Tensor], item: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(network, parameters, (item,)).square().sum()

        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        jacobian = torch.func.jacrev(lambda item: network(item))(x[0])
        hessian = torch.func.hessian(lambda item: network(item).sum())(x[0])
        _, tangent = torch.func.jvp(lambda item: item.sin(), (x,), (torch.ones_like(x),))
        return per_sample, jacobian, hessian, tangent

    check_cell(recorder, run, network, torch.randn(5, 3))


def test_forward_mode_leaves_out_what_has_no_derivative(recorder: Recorder) -> None:
    """Eager adds no zeros where a derivative is none, so that a zero keeps its sign."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        hessian = torch.func.hessian(lambda x: (x**3).sum())(-x)
        value, tangent = torch.func.jvp(lambda x: (3 * x - 1) / 2, (x,), (torch.ones(2),))
        return [1 / hessian, torch.func.jacfwd(lambda x: 3 * x)(torch.ones(2)), value, tangent]

    check_cell(recorder, run, torch.ones(2))


def test_moving_to_the_meta_device_keeps_the_shape_alone(recorder: Recorder) -> None:
    with cell(recorder):
        x = torch.ones(2, 3).t() + 1
        made = [x.to("meta"), torch.zeros_like(x, device="meta"), x.new_empty(4, device="meta")]
    assert [(item.device.type, tuple(item.shape)) for item in made] == [
        ("meta", (3, 2)),
        ("meta", (3, 2)),
        ("meta", (4,)),
    ]


def test_ensembles_with_vmap(recorder: Recorder) -> None:
    def run(models: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
        parameters, buffers = torch.func.stack_module_state(models)
        base = copy.deepcopy(models[0]).to("meta")
        call = lambda p, b, x: torch.func.functional_call(base, (p, b), (x,))  # noqa: E731
        return torch.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)

    check_cell(recorder, run, [nn.Linear(3, 2) for _ in range(4)], torch.randn(5, 3))


def _autocast_step(network: nn.Module, device: str) -> torch.Tensor:
    with torch.autocast(device, dtype=torch.bfloat16):
        returned = network(torch.randn(3, 4))
        assert returned.dtype is torch.bfloat16
        loss = F.mse_loss(returned.float(), torch.zeros(3, 2))
    return _step(loss)


def test_autocast(recorder: Recorder) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    check_cell(recorder, lambda network: _autocast_step(network, "cpu"), network)


def test_autocast_for_cuda_means_the_pools_device(recorder: Recorder) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    plain = copy.deepcopy(network)
    torch.manual_seed(1)
    expected = _autocast_step(plain, "cpu")
    torch.manual_seed(1)
    with cell(recorder):
        found = _autocast_step(network.cuda(), "cuda")
    assert difference([found, network], [expected, plain]) is None


def test_autocast_for_cuda_defaults_to_half_precision(recorder: Recorder) -> None:
    with cell(recorder), torch.autocast("cuda"), torch.cuda.amp.autocast():
        y = nn.Linear(4, 2).cuda()(torch.ones(1, 4, device="cuda"))
    assert y.dtype is torch.float16


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gradient_scaler(device: str, recorder: Recorder) -> None:
    def train(network: nn.Module, device: str) -> tuple[Any, ...]:
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = network(torch.randn(3, 4)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        return loss, scaler.get_scale(), optimizer

    network = nn.Linear(4, 2)
    plain = copy.deepcopy(network)
    torch.manual_seed(1)
    expected = train(plain, "cpu")
    torch.manual_seed(1)
    with cell(recorder):
        found = train(network, device)
    assert difference([found, network], [expected, plain]) is None
