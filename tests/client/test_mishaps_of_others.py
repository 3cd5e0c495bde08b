"""Other people's settings and mishaps, with a real pool in between."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest, kill_worker
from torch import nn

from djinn_lab.capture.recorders import chosen
from djinn_lab.client.session import Session
from djinn_lab.errors import RemoteError

native_only = pytest.mark.skipif(chosen() == "python", reason="the Python recorder does not see the settings")


@native_only
def test_numeric_settings_reach_a_real_worker_and_end_with_the_program(session: Session) -> None:
    def body(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        with warnings.catch_warnings(), torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            off = layer(x)
        torch.set_default_dtype(torch.float64)
        try:
            wide = torch.arange(3) * 1.5
        finally:
            torch.set_default_dtype(torch.float32)
        return [off, wide, layer(x), torch.arange(3) * 1.5]

    layer, x = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 17, 17)
    expected = body(layer, x)
    with session.capture():
        found = body(layer, x)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.detach().cpu(), theirs.detach())


def test_caught_error_of_a_real_worker_does_not_rewind_the_random_stream(session: Session) -> None:
    torch.manual_seed(3)
    torch.randn(3, 2)
    expected = torch.randn(2)
    torch.manual_seed(3)
    with session.capture():
        with pytest.raises(RemoteError, match="index out of range"):
            nn.functional.embedding(torch.tensor([9]), torch.randn(3, 2)).sum().item()
        found = torch.randn(2)
    assert torch.equal(found.cpu(), expected)


def test_parameters_survive_a_worker_that_dies_right_after_a_cell(tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path, devices=f"{KIND}:1") as pool, pool.session() as session:
        layer, x = nn.Linear(3, 2), torch.ones(1, 3)
        expected = layer(x)
        with session.capture():
            layer(x)
        kill_worker(pool)
        with session.capture():
            found = layer(x)
        assert torch.equal(found.detach().cpu(), expected.detach())
        assert torch.equal(layer(x).detach().cpu(), expected.detach())
