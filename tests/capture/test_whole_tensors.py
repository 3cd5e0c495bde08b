"""Objects whose inside changes: ``x.data = y``, parameters that a graph was built on, seeds set again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from equality import check_cell
from in_process import InProcessBackend, cell
from torch import nn

from djinn_lab.capture.recorders import Recorder, chosen
from djinn_lab.errors import CaptureError


def test_data_of_a_plain_parameter_set_to_a_captured_value(recorder: Recorder) -> None:
    def run(network: nn.Linear, bare: torch.Tensor) -> Any:
        network.weight.data = torch.full((2, 2), 5.0)
        network.bias.data = network.bias.data * 3
        bare.data = torch.zeros(3) + 2
        return network(torch.ones(1, 2)), bare * 1

    network = nn.Linear(2, 2)
    weight = network.weight
    check_cell(recorder, run, network, torch.ones(3, requires_grad=True))
    assert network.weight is weight


def test_data_set_between_backward_and_the_next_step(recorder: Recorder) -> None:
    def descend(w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            loss = (w * torch.arange(3.0)).square().sum()
            loss.backward()
            w.data = w.data - 0.1 * w.grad
            w.grad = None
        return loss

    check_cell(recorder, descend, torch.ones(3, requires_grad=True))


def test_data_of_a_plain_tensor_set_to_a_plain_one(recorder: Recorder) -> None:
    other = torch.arange(3.0)

    def run(w: torch.Tensor) -> Any:
        before = w + 0
        w.data = other
        return before, w + 0

    check_cell(recorder, run, torch.ones(3))


def test_deepcopy_and_buffers_set_inside_a_cell(recorder: Recorder) -> None:
    def run(network: nn.BatchNorm1d, x: torch.Tensor) -> Any:
        copied = copy.deepcopy(x)
        x += 1
        again = copy.deepcopy(x)
        network.running_mean = torch.ones(3)
        network.register_buffer("scale", torch.arange(3.0))
        network.running_var.data = torch.full((3,), 4.0)
        return copied, again, network(x * network.scale)

    check_cell(recorder, run, nn.BatchNorm1d(3), torch.randn(4, 3))


def test_a_penalty_on_the_weights_before_the_first_forward(recorder: Recorder) -> None:
    def run(network: nn.Module) -> torch.Tensor:
        penalty = sum(item.sum() for item in network.parameters())
        loss = network(torch.ones(1, 2)).sum() + penalty
        loss.backward()
        return loss

    check_cell(recorder, run, nn.Linear(2, 2))


def test_a_graph_older_than_the_cell_works_or_is_refused_with_advice(recorder: Recorder) -> None:
    network = nn.Linear(2, 2)
    old = network(torch.ones(1, 2)).sum()
    with cell(recorder):
        network(torch.ones(1, 2)).sum().backward()
    if chosen() == "python":
        with pytest.raises(CaptureError, match="Run the forward pass again"):
            old.backward()
    else:
        old.backward()
        assert network.bias.grad.tolist() == [2.0, 2.0]


def test_the_same_seed_set_twice_gives_the_same_numbers(recorder: Recorder) -> None:
    with cell(recorder):
        torch.manual_seed(0)
        first = torch.randn(3)
        torch.manual_seed(0)
        second = torch.randn(3)
    torch.manual_seed(0)
    assert torch.equal(first.cpu(), torch.randn(3))
    assert torch.equal(second.cpu(), first.cpu())


def test_in_place_views_need_no_values(recorder: Recorder, backend: InProcessBackend) -> None:
    with cell(recorder):
        x = torch.arange(6.0).view(2, 3) + 1
        x.t_()
        x.unsqueeze_(0)
    assert [cut.cause for cut in backend.cuts] == ["cell end"]
    assert x.shape == (1, 3, 2)


def test_python_numbers_and_new_tensors_of_captured_values(recorder: Recorder) -> None:
    def run(x: torch.Tensor) -> Any:
        losses = [x.sum(), x.mean()]
        nested = torch.tensor([[losses[0], 1.0], [2.0, x[1]]])
        legacy = torch.FloatTensor([x[0]]), torch.LongTensor([x[1].long()]), x.new_tensor([x[2]])
        picked = ["a", "b", "c"][x.argmax()]
        return nested, legacy, torch.as_tensor(losses), picked, int(x[1]), bool(x[0] > 0), complex(x[2])

    check_cell(recorder, run, torch.randn(3))


@pytest.mark.parametrize("width", [1, 5, 30])
def test_text_breaks_lines_where_eager_does(width: int, recorder: Recorder) -> None:
    def show(x: torch.Tensor) -> list[str]:
        y = x * 2
        return [repr(y), repr(y.double()), repr(y.relu().exp().sum(0)), repr(y.detach())]

    check_cell(recorder, show, torch.randn(2, width, requires_grad=True))


def test_a_plain_tensor_of_lazy_losses(recorder: Recorder) -> None:
    with cell(recorder):
        losses = [torch.ones(2).sum() * index for index in range(3)]
    assert torch.tensor(losses).tolist() == [0.0, 2.0, 4.0]
