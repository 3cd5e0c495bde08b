"""Keeping and copying models inside and outside of captured cells."""

from __future__ import annotations

import copy
from typing import Any

import torch
from equality import check_cell, difference
from in_process import cell
from torch import nn

from djinn_lab.capture.recorders import Recorder


def _step(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


def test_moving_average_of_a_model(recorder: Recorder) -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)

    def train(network: nn.Module, average: AveragedModel, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        own = copy.deepcopy(network)
        for _ in range(3):
            optimizer.zero_grad()
            _step(network(torch.randn(4, 3)).square().mean())
            optimizer.step()
            average.update_parameters(network)
            with torch.no_grad():
                for kept, now in zip(own.parameters(), network.parameters(), strict=True):
                    kept.mul_(0.9).add_(now, alpha=0.1)
        return own.state_dict()

    check_cell(recorder, train, network, average, optimizer)


def test_state_dicts_inside_a_cell(recorder: Recorder, tmp_path: object) -> None:
    path = f"{tmp_path}/checkpoint.pt"

    def run(network: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        _step(network(torch.randn(2, 3)).sum())
        optimizer.step()
        torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict()}, path)
        loaded = torch.load(path, weights_only=True)
        other = nn.Linear(3, 2)
        other.load_state_dict(loaded["network"])
        again = torch.optim.Adam(other.parameters(), 0.1)
        again.load_state_dict(loaded["optimizer"])
        _step(other(torch.ones(2, 3)).sum())
        again.step()
        network.load_state_dict(other.state_dict(), assign=True)
        return other, again, loaded

    network = nn.Linear(3, 2)
    check_cell(recorder, run, network, torch.optim.Adam(network.parameters(), 0.1))


def test_a_lazy_model_goes_through_files_outside_cells(recorder: Recorder, tmp_path: object) -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with cell(recorder):
        network(torch.randn(4, 3)).sum().backward()
    torch.save(network, f"{tmp_path}/whole.pt")
    whole = torch.load(f"{tmp_path}/whole.pt", weights_only=False)
    assert difference(whole.state_dict(), network.state_dict()) is None
    fresh = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    fresh.load_state_dict(network.state_dict())
    network.load_state_dict({name: item * 2 for name, item in fresh.state_dict().items()})
    copied = copy.deepcopy(network)
    copied.load_state_dict(fresh.state_dict())
    with cell(recorder):
        y, z = network(torch.ones(2, 3)), copied(torch.ones(2, 3))
    assert torch.equal(network[0].weight.detach().cpu(), fresh[0].weight * 2)
    assert not torch.equal(y.cpu(), z.cpu())
    assert torch.equal(z.detach().cpu(), fresh(torch.ones(2, 3)).detach())
