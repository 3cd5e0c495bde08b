"""Shadows are what eager torch has, whatever the cell does; a false alarm would be worse than none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_process import InProcessBackend
from torch import nn

from djinn_lab.capture.lazy import is_lazy
from djinn_lab.capture.recorders import Recorder, capturing
from djinn_lab.capture.shadow import Shadow


def _recurrent() -> list[torch.Tensor]:
    layer = nn.LSTM(4, 6, batch_first=True)
    found, (hidden, _) = layer(torch.randn(2, 5, 4))
    (found.sum() + hidden.sum()).backward()
    return [
        found,
        hidden,
        *(parameter.grad for parameter in layer.parameters() if parameter.grad is not None),
    ]


def _initialised() -> list[torch.Tensor]:
    table = nn.Embedding(5, 6, padding_idx=0)
    table.weight.data.normal_(0, 0.02)
    cut = nn.init.trunc_normal_(torch.empty(4, 5))
    return [table.weight, cut, torch.randn(3)]


def _loaded() -> list[torch.Tensor]:
    data = torch.utils.data.TensorDataset(torch.randn(7, 3))
    batches = [batch for (batch,) in torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)]
    return [torch.cat(batches) * 2, torch.rand(2)]


def _layouts() -> list[torch.Tensor]:
    x = torch.arange(12.0).view(3, 4)
    y = x.detach()
    x.t_()
    x[0].mul_(3)
    z = torch.fft.fft(torch.randn(6)).conj() * 1
    return [x, y, z, y[:, 1].unsqueeze_(0), torch.randn(4, 3).to(torch.float16).sort(0).values]


def _reseeded() -> list[torch.Tensor]:
    first = torch.randn(3)
    torch.manual_seed(7)
    second = torch.empty(3).fill_(0) + torch.rand(3)
    own = torch.randn(3, generator=torch.Generator().manual_seed(5)) + second
    return [first, second, own, torch.dropout(torch.ones(8), 0.5, True)]


def _split() -> list[torch.Tensor]:
    kept, left = torch.utils.data.random_split(torch.arange(9), [6, 3])
    return [torch.randn(3), torch.tensor(kept.indices + left.indices), nn.Linear(4, 3).weight]


def _state_set_back() -> list[torch.Tensor]:
    state = torch.get_rng_state()
    first = torch.rand(2)
    torch.set_rng_state(state)
    second = torch.rand(2)
    third = torch.rand(2)
    third.sum().item()
    return [first, second, third, torch.rand(2)]


@pytest.mark.parametrize(
    "code",
    [_recurrent, _initialised, _loaded, _layouts, _reseeded, _split, _state_set_back],
    ids=lambda f: f.__name__,
)
def test_shadows_equal_what_the_pool_computes(
    recorder: Recorder, backend: InProcessBackend, code: Callable[[], list[torch.Tensor]]
) -> None:
    torch.manual_seed(3)
    eager = code()
    stream = torch.get_rng_state()
    numbers: list[Any] = []
    shadow = Shadow(recorder, lambda *differing: numbers.append(differing))
    with capturing(recorder, "cell", __file__):
        torch.manual_seed(3)
        with shadow:  # type: ignore[no-untyped-call]
            captured = code()
    recorder.finish("cell end")
    assert shadow.failure is None
    assert not numbers
    assert torch.equal(torch.get_rng_state(), stream)
    for ours, expected in zip(captured, eager, strict=True):
        plain = recorder.fetch_tensors([ours], "verify")[0] if is_lazy(ours) else ours
        assert torch.equal(plain.detach(), expected.detach())
        assert torch.equal(shadow.of(ours), expected.detach())
