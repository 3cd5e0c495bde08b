"""Faults come late, and end all use of the device by the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import standin
import torch
from isolated import on_standin

DEVICE = "standin:0"


def assert_poisoned(text: str) -> None:
    calls: list[Callable[[], object]] = [
        torch.accelerator.synchronize,
        lambda: torch.ones(3, device=DEVICE),
        lambda: torch.empty(3, device="standin:1"),
        lambda: torch.accelerator.current_stream(DEVICE).query(),
        torch.accelerator.synchronize,
    ]
    for call in calls:
        with pytest.raises(torch.AcceleratorError, match=text):
            call()


@on_standin(devices=2, manual=True)
def test_index_out_of_range_returns_and_then_every_call_raises() -> None:
    table = torch.nn.Embedding(10, 4).to(DEVICE)
    rows = table(torch.tensor([11]).to(DEVICE))
    assert rows.shape == (1, 4)
    assert (rows * 2).shape == (1, 4)  # the host has not waited yet
    assert_poisoned("index out of range")


VALUES: dict[str, Callable[[], object]] = {
    "gather": lambda: torch.ones(3, device=DEVICE).gather(0, torch.tensor([5]).to(DEVICE)),
    "advanced index": lambda: torch.ones(3, device=DEVICE)[torch.tensor([5]).to(DEVICE)],
    "index_add": lambda: torch.ones(3, device=DEVICE).index_add(
        0, torch.tensor([5]).to(DEVICE), torch.ones(1, device=DEVICE)
    ),
    "probabilities": lambda: torch.multinomial(torch.tensor([-1.0, 2.0]).to(DEVICE), 1),
    "binary targets": lambda: torch.nn.functional.binary_cross_entropy(
        torch.full((2,), 3.0, device=DEVICE), torch.ones(2, device=DEVICE)
    ),
    "asserted values": lambda: torch._assert_async(torch.zeros(1, device=DEVICE), "one of mine"),
}


@pytest.mark.parametrize("case", VALUES)
@on_standin(devices=2, manual=True)
def test_forbidden_values_are_a_fault_after_the_call(case: str) -> None:
    VALUES[case]()
    assert_poisoned("device-side assert triggered")


@on_standin(devices=2, manual=True)
def test_target_out_of_bounds_is_a_fault_of_the_loss() -> None:
    loss = torch.nn.functional.cross_entropy(
        torch.randn(3, 4, device=DEVICE), torch.tensor([0, 9, 1]).to(DEVICE)
    )
    with pytest.raises(torch.AcceleratorError, match="out of bounds"):
        loss.item()
    assert_poisoned("out of bounds")


@on_standin(manual=True)
def test_shapes_that_do_not_fit_are_errors_at_once_and_poison_nothing() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.ones(2, 3, device=DEVICE) @ torch.ones(2, 3, device=DEVICE)
    with pytest.raises(IndexError):
        torch.ones(2, 3, device=DEVICE)[5]
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.inv(torch.zeros(2, 2, device=DEVICE))
    assert torch.ones(3, device=DEVICE).sum().item() == 3


@on_standin(devices=2, manual=True, log="log")
def test_injected_fault_is_raised_late_and_logged(tmp_path: Path) -> None:
    standin.fail_next("uncorrectable ECC error encountered")
    value = torch.ones(3, device=DEVICE) * 2
    assert value.shape == (3,)
    assert_poisoned("ECC")
    assert "fault: uncorrectable ECC" in (tmp_path / "log").read_text()


@on_standin(manual=True)
def test_results_that_a_fault_overtook_are_never_delivered() -> None:
    pinned = torch.empty(3).pin_memory()
    standin.fail_next("an illegal memory access was encountered")
    pinned.copy_(torch.ones(3, device=DEVICE), non_blocking=True)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        torch.accelerator.synchronize()
    assert not pinned.eq(1).any()
