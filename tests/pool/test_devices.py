"""Which devices a pool offers."""

from __future__ import annotations

import pytest

from djinn_lab.errors import OptionError
from djinn_lab.pool.devices import plans
from djinn_lab.pool.devices.plans import CPU_BYTES_MAX, plan_devices


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
        cards = [2**36] * count
        monkeypatch.setattr(plans, "cuda_memory_bytes", lambda cards=cards: cards)
        assert sum(plan.host_bytes for plan in plan_devices("cuda", None, 1)) <= 32 * 2**20


def test_host_tiers_beyond_shared_memory_are_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with_shared_memory(monkeypatch, 64 * 2**20)
    with pytest.raises(OptionError, match=r"2 x 40\.0 MiB .* shared memory \(/dev/shm\) has left") as refused:
        plan_devices("cpu:2", 2**20, 1, host_bytes=40 * 2**20)
    assert "at most 14.4 MiB" in str(refused.value)
    assert "--shm-size" in str(refused.value)
    assert [plan.host_bytes for plan in plan_devices("cpu:2", 2**20, 1, host_bytes=2**24)] == [2**24] * 2
