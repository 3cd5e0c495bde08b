"""Which devices a pool offers."""

from __future__ import annotations

import sys

import msgspec
import pytest

from djinn_lab.config.detection import Torch
from djinn_lab.errors import OptionError
from djinn_lab.pool.devices import cuda_cards, plans
from djinn_lab.pool.devices.cuda_cards import Card, Cards, find_cards, read_answer
from djinn_lab.pool.devices.plans import CPU_BYTES_MAX, plan_devices

FOR_CUDA = Torch("found", "2.13.0", "13.0")
H200 = Card("NVIDIA H200", 140 * 2**30, 139 * 2**30, "GPU-1")


def test_cpu_devices_share_the_machine() -> None:
    plans = plan_devices("cpu:3", None, None)
    assert [plan.device for plan in plans] == ["cpu:0", "cpu:1", "cpu:2"]
    assert all(0 < plan.memory_bytes <= CPU_BYTES_MAX and plan.threads >= 1 for plan in plans)


def test_limits_can_be_given() -> None:
    (plan,) = plan_devices("cpu", 1000, 5)
    assert (plan.device, plan.kind, plan.memory_bytes, plan.threads) == ("cpu:0", "cpu", 1000, 5)


def test_auto_always_finds_something() -> None:
    """The machine's free memory may change from one call to the next; the devices are the same."""
    found = [plan.device for plan in plan_devices("auto", None, None)]
    assert found
    assert [plan.device for plan in plan_devices(None, None, None)] == found
    assert [plan.device for plan in plan_devices("auto", 1000, 1)] == found


def test_without_cuda_there_are_two_cpu_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [plan.device for plan in plan_devices("auto", 1000, 1)] == ["cpu:0", "cpu:1"]
    with pytest.raises(OptionError, match="No CUDA device"):
        plan_devices("cuda", None, None)


@pytest.mark.parametrize("wanted", ["cpu:0", "cpu:x", "tpu", "cpu:1:2", "CPU"])
def test_invalid_device_names_are_refused(wanted: str) -> None:
    with pytest.raises(OptionError, match="names no devices"):
        plan_devices(wanted, None, None)


def with_shared_memory(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(plans, "free_shared_memory", lambda: nbytes)


def test_host_tiers_fit_shared_memory_beside_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    with_shared_memory(monkeypatch, 64 * 2**20)
    found = plan_devices("cpu:4", 2**30, 1)
    assert 0 < sum(plan.host_bytes for plan in found) <= 32 * 2**20
    for count in (1, 8):
        cards = Cards((H200,) * count)
        monkeypatch.setattr(plans, "find_cards", lambda cards=cards: cards)
        assert sum(plan.host_bytes for plan in plan_devices("cuda", None, 1)) <= 32 * 2**20


def test_host_tiers_beyond_shared_memory_are_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with_shared_memory(monkeypatch, 64 * 2**20)
    with pytest.raises(OptionError, match=r"2 x 40\.0 MiB .* shared memory \(/dev/shm\) has left") as refused:
        plans.check_host_bytes(plan_devices("cpu:2", 2**20, 1), 40 * 2**20)
    assert "at most 14.4 MiB" in str(refused.value)
    assert "--shm-size" in str(refused.value)
    found = plan_devices("cpu:2", 2**20, 1, host_bytes=2**24)
    plans.check_host_bytes(found, 2**24)
    assert [plan.host_bytes for plan in found] == [2**24] * 2


def test_limit_of_a_card_is_a_share_of_what_is_free_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    half_used = Card("NVIDIA L4", 24 * 2**30, 10 * 2**30)
    monkeypatch.setattr(plans, "find_cards", lambda: Cards((H200, half_used)))
    first, second = plan_devices("cuda", None, 1)
    assert 120 * 2**30 < first.memory_bytes < 139 * 2**30
    assert 9 * 2**30 < second.memory_bytes < 10 * 2**30
    assert [plan.memory_bytes for plan in plan_devices("cuda", 2**30, 1)] == [2**30] * 2
    assert second.spare_bytes == 10 * 2**30 - second.memory_bytes
    for wanted in (12 * 2**30, 10 * 2**30 - 2**20):
        with pytest.raises(OptionError, match=r"and the 640\.0 MiB that a worker's process takes for itself"):
            plan_devices("cuda", wanted, 1)
    with pytest.raises(OptionError, match=r"are more than the 10\.0 GiB of 24\.0 GiB that are free on the"):
        plan_devices("cuda", 12 * 2**30, 1)


@pytest.mark.parametrize("wanted", ["auto", "cuda", None])
def test_a_driver_without_a_usable_device_is_an_error_that_says_why(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    found = read_answer(1, "", "x\nRuntimeError: The NVIDIA driver on your system is too old", None)
    monkeypatch.setattr(plans, "find_cards", lambda: found)
    with pytest.raises(OptionError, match="driver on your system is too old") as refused:
        plan_devices(wanted, None, 1)
    assert "--devices cpu:2" in str(refused.value)


def with_driver(monkeypatch: pytest.MonkeyPatch, torch: Torch, visible: str | None = None) -> None:
    monkeypatch.setattr(cuda_cards, "_has_driver", lambda: True)
    monkeypatch.setattr(cuda_cards, "probe_torch", lambda: torch)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def prints(text: str) -> list[str]:
    return [sys.executable, "-c", f"print({text!r})"]


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        (Torch("found", "2.13.0"), "CPUs only"),
        (Torch("found", "2.13.0", rocm="6.4"), "ROCm"),
        (Torch("absent"), "not installed"),
    ],
)
def test_torch_for_something_else_than_cuda_is_named(
    monkeypatch: pytest.MonkeyPatch, torch: Torch, said: str
) -> None:
    with_driver(monkeypatch, torch)
    assert said in find_cards().problem


def test_cards_are_those_that_torch_names_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, FOR_CUDA)
    cards = (H200, Card("NVIDIA H200 MIG 1g.18gb", 16 * 2**30, 15 * 2**30, "MIG-2"))
    assert find_cards(prints(msgspec.json.encode(cards).decode())) == Cards(cards)


def test_devices_that_torch_does_not_find_are_a_problem_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, FOR_CUDA, "nonsense")
    found = find_cards(prints("[]"))
    assert "CUDA_VISIBLE_DEVICES is 'nonsense'" in found.problem
    assert "nvidia-smi -L" in found.advice
    with_driver(monkeypatch, FOR_CUDA)
    assert "finds no CUDA device" in find_cards(prints("[]")).problem
    assert (
        "finds no CUDA device it can use" in find_cards([sys.executable, "-c", "raise SystemExit(1)"]).problem
    )
    assert "in no way that is known" in find_cards(prints("what")).problem


def test_devices_that_the_user_hides_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, FOR_CUDA, "")
    assert find_cards(prints("[]")) == Cards()
