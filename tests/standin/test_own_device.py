"""Cells of a notebook whose machine has its own accelerator: what lies there goes to the pool when asked."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from capture.in_process import InProcessBackend, cell
from isolated import on_standin

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import CHOICE, make_recorder
from djinn_lab.errors import CaptureError

DEVICE = "standin:0"


@pytest.mark.parametrize("kind", ["native", "python"])
@on_standin()
def test_tensors_and_modules_are_copied_to_the_pool(kind: str) -> None:
    os.environ[CHOICE] = kind
    recorder = make_recorder(InProcessBackend())
    plain = torch.nn.Linear(3, 2)
    layer = copy.deepcopy(plain).to(DEVICE)
    x = torch.arange(3.0).to(DEVICE)
    with cell(recorder):
        moved = x.cuda()
        doubled = x.to("cuda") * 2
        layer.cuda()
        made = layer(moved[None])
        made.sum().backward()
    assert is_lazy(moved)
    assert is_lazy(layer.weight)
    assert doubled.tolist() == [0.0, 2.0, 4.0]
    expected = plain(torch.arange(3.0)[None])
    expected.sum().backward()
    assert torch.equal(made.detach().cpu(), expected.detach())
    assert layer.weight.grad is not None
    assert plain.weight.grad is not None
    assert torch.equal(layer.weight.grad.cpu(), plain.weight.grad)


@pytest.mark.parametrize("kind", ["native", "python"])
@on_standin()
def test_what_cannot_go_there_says_what_to_do(kind: str) -> None:
    os.environ[CHOICE] = kind
    recorder = make_recorder(InProcessBackend())
    x = torch.ones(3, device=DEVICE)
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    with cell(recorder):
        y = torch.ones(3).cuda()
        with pytest.raises(CaptureError, match=r"standin:0.* own, cannot be captured"):
            _ = y + x
        with pytest.raises(CaptureError, match="a gradient cannot flow from the pool back to standin:0"):
            weight.cuda()
        kept = y + weight.detach().cuda()
    assert kept.tolist() == [2.0] * 3
