"""Where torch asks the device which form of an op it takes, the answer is a GPU's."""

from __future__ import annotations

import io
from collections.abc import Callable

import standin
import torch
from isolated import on_standin

DEVICE = "standin:0"


def launches(call: Callable[[], object]) -> int:
    before = standin.counters()["launches"]
    call()
    return standin.counters()["launches"] - before


@on_standin(manual=True)
def test_optimizer_of_many_tensors_is_a_few_foreach_launches() -> None:
    parameters = [torch.nn.Parameter(torch.randn(10, 10, device=DEVICE)) for _ in range(100)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters)
    optimizer.step()
    assert launches(optimizer.step) == 8


@on_standin(manual=True)
def test_ops_that_a_gpu_has_a_kernel_for_are_one_launch() -> None:
    functional, x = torch.nn.functional, torch.randn(8, 16, device=DEVICE)
    image, filters = torch.randn(1, 3, 8, 8, device=DEVICE), torch.randn(4, 3, 3, 3, device=DEVICE)
    assert launches(lambda: functional.dropout(x, 0.5)) == 1
    assert launches(lambda: functional.layer_norm(x, (16,))) == 1
    assert launches(lambda: functional.conv2d(image, filters)) == 1
    assert launches(lambda: functional.silu(x)) == 1
    assert launches(lambda: x.view(16, 8)) == 0


@on_standin(manual=True)
def test_autocast_follows_the_lists_of_cuda() -> None:
    x = torch.randn(8, 16, device=DEVICE)
    with torch.autocast("standin", dtype=torch.float16):
        assert (x @ x.t()).dtype == torch.float16
        assert torch.softmax(x.half(), -1).dtype == torch.float32
        assert torch.nn.functional.layer_norm(x.half(), (16,)).dtype == torch.float32
        assert (x.half() + x).dtype == torch.float32
        assert x.half().sum().dtype == torch.float32
    with torch.autocast("standin"), torch.autocast("cpu"):
        assert torch.ones(3, 3, device=DEVICE).exp().dtype == torch.float32


@on_standin(manual=True)
def test_ops_whose_results_the_host_must_know_wait() -> None:
    x = torch.tensor([0.0, 1.0, 2.0]).to(DEVICE)
    for call in (lambda: x.nonzero(), lambda: x[x > 0], lambda: torch.equal(x, x), lambda: x.unique()):
        before = standin.counters()["waits"]
        call()
        assert standin.counters()["waits"] > before
    before = standin.counters()["waits"]
    torch.where(x > 0, x, -x).cumsum(0)[torch.arange(2, device=DEVICE)]
    assert standin.counters()["waits"] == before


@on_standin(manual=True)
def test_resized_output_has_its_values_and_layout() -> None:
    out = torch.empty(0, device=DEVICE)
    torch.add(torch.ones(2, 3, device=DEVICE), 1, out=out)
    assert out.tolist() == [[2.0] * 3] * 2
    values, indices = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.long, device=DEVICE)
    torch.max(torch.tensor([[1.0, 5.0], [7.0, 2.0]]).to(DEVICE), 1, out=(values, indices))
    assert (values.tolist(), indices.tolist()) == ([5.0, 7.0], [1, 0])


@on_standin(manual=True)
def test_conjugate_and_negative_views_are_copied_as_they_read() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j]).to(DEVICE)
    assert x.conj().cpu().tolist() == [1 - 2j, 3 + 1j]
    assert x.conj().imag.cpu().tolist() == [-2.0, 1.0]
    assert x.cpu().conj().to(DEVICE).tolist() == [1 - 2j, 3 + 1j]


@on_standin(manual=True)
def test_recurrent_layers_use_the_cells_of_a_gpu_and_agree_with_the_cpu() -> None:
    def run(layer: torch.nn.RNNBase, device: str) -> list[torch.Tensor]:
        layer.to(device).zero_grad()
        inputs = torch.linspace(-1, 1, 24).reshape(3, 2, 4).to(device).requires_grad_()
        result, _ = layer(inputs)
        result.square().sum().backward()
        gradients = [inputs.grad, *(parameter.grad for parameter in layer.parameters())]
        return [result.detach().cpu(), *(gradient.cpu() for gradient in gradients if gradient is not None)]

    torch.manual_seed(0)
    for layer in (
        torch.nn.LSTM(4, 5),
        torch.nn.GRU(4, 5),
        torch.nn.LSTM(4, 5, bias=False, bidirectional=True),
    ):
        for ours, cpus in zip(run(layer, DEVICE), run(layer, "cpu"), strict=True):
            torch.testing.assert_close(ours, cpus)


@on_standin(manual=True)
def test_saved_tensors_come_back_to_their_device() -> None:
    file = io.BytesIO()
    torch.save(torch.arange(5, device=DEVICE), file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.device == torch.device(DEVICE)
    assert loaded.tolist() == [0, 1, 2, 3, 4]


@on_standin(manual=True)
def test_training_has_the_bits_of_the_cpu() -> None:
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2)
        )
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for step in range(5):
            inputs = torch.arange(32.0).reshape(4, 8).to(device) + step
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    for ours, cpus in zip(train(DEVICE), train("cpu"), strict=True):
        assert torch.equal(ours, cpus)
