"""Calls return before their results are there; streams, events and copies order them."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import standin
import torch
from isolated import on_standin

DEVICE = "standin:0"


@on_standin(manual=True)
def test_accelerator_interface_names_the_stand_in() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("standin")
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_stream() == torch.accelerator.current_stream(DEVICE)
    assert torch.ones(3, device="standin").device == torch.device(DEVICE)
    assert torch.ones(3).standin().device == torch.device(DEVICE)


@on_standin(devices=3, manual=True)
def test_current_device_is_where_tensors_without_a_number_go() -> None:
    torch.accelerator.set_device_index(2)
    assert torch.accelerator.device_count() == 3
    assert torch.ones(3, device="standin").device.index == 2
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(3, device="standin:3")


@on_standin(devices=2, manual=True)
def test_tensors_of_two_devices_or_of_the_host_do_not_mix() -> None:
    here, there = torch.ones(3, device=DEVICE), torch.ones(3, device="standin:1")
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    with pytest.raises(RuntimeError, match="same device"):
        here + torch.ones(3)
    assert (here + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]
    assert here[torch.tensor([0, 2])].tolist() == [1.0, 1.0]


@on_standin(dies_by=signal.SIGSEGV)
def test_host_read_of_a_device_pointer_ends_the_process() -> None:
    import ctypes

    ctypes.string_at(torch.ones(3, device=DEVICE).data_ptr(), 4)


@on_standin(manual=True)
def test_launch_returns_before_its_kernel_has_ended() -> None:
    result = torch.ones(1000, device=DEVICE) * 2
    stream = torch.accelerator.current_stream()
    assert not stream.query()
    assert result.sum().item() == 2000
    assert stream.query()


@on_standin(manual=True)
def test_event_has_ended_when_what_was_before_it_has() -> None:
    standin.next_kernel_takes(2.0)
    begin, end = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
    begin.record()
    torch.ones(3, device=DEVICE)
    end.record()
    torch.ones(3, device=DEVICE)
    assert not end.query()
    end.synchronize()
    assert end.query()
    assert not torch.accelerator.current_stream().query()
    assert begin.elapsed_time(end) == pytest.approx(2000, abs=1)


@on_standin(manual=True)
def test_stream_waits_for_an_event_of_another() -> None:
    side = torch.Stream(DEVICE)
    standin.next_kernel_takes(5.0)
    made = torch.ones(3, device=DEVICE)
    side.wait_event(torch.accelerator.current_stream().record_event())
    with side:
        made + 1
    assert standin.races() == []
    side.synchronize()
    assert torch.accelerator.current_stream().query()


@on_standin(manual=True)
def test_pinned_result_is_poison_until_its_copy_has_ended() -> None:
    pinned = torch.empty(1000).pin_memory()
    pinned.copy_(torch.full((1000,), 3.0, device=DEVICE), non_blocking=True)
    assert not pinned.eq(3).any()
    torch.accelerator.synchronize()
    assert pinned.eq(3).all()


@on_standin(manual=True)
def test_pageable_copies_are_synchronous_whatever_was_asked_for() -> None:
    host = torch.empty(1000)
    host.copy_(torch.full((1000,), 3.0, device=DEVICE), non_blocking=True)
    assert host.eq(3).all()
    source = torch.ones(1000)
    target = source.to(DEVICE, non_blocking=True)
    source.zero_()
    assert target.sum().item() == 1000
    assert standin.races() == []


@on_standin(manual=True, link_bytes_per_s=1e6)
def test_directions_of_the_link_are_lanes_with_a_rate() -> None:
    assert standin.link_bytes_per_s == 1e6
    pinned = torch.zeros(1_000_000, dtype=torch.uint8).pin_memory()
    streams = [torch.Stream(DEVICE) for _ in range(2)]
    begin = torch.Event(DEVICE, enable_timing=True)
    begin.record()
    ends = []
    for stream in streams:  # one after the other, although the streams do not wait for each other
        with stream:
            pinned.to(DEVICE, non_blocking=True)
        ends.append(stream.record_event(torch.Event(DEVICE, enable_timing=True)))
    torch.accelerator.synchronize()
    assert [round(begin.elapsed_time(end) / 1000) for end in ends] == [1, 2]


@on_standin(manual=True)
def test_registered_memory_is_pinned_until_it_is_unregistered() -> None:
    host, made = torch.zeros(1000), torch.ones(1000, device=DEVICE)
    address = host.data_ptr()
    standin.pin(address, host.nbytes)
    assert standin.is_pinned(address + 100)
    assert host[10:].is_pinned()
    with pytest.raises(RuntimeError, match="already pinned"):
        standin.pin(address + 40, 8)
    host.copy_(made, non_blocking=True)
    assert not host.eq(1).any()
    torch.accelerator.synchronize()
    assert host.eq(1).all()
    standin.unpin(address)
    assert not standin.is_pinned(address)
    with pytest.raises(RuntimeError, match="no pinned range"):
        standin.unpin(address)


@on_standin(manual=True, log="log")
def test_access_that_nothing_orders_is_a_race_and_the_log_has_it(tmp_path: Path) -> None:
    side, made = torch.Stream(DEVICE), torch.ones(1000, device=DEVICE) * 2
    with side:
        made + 1
    assert "may not have written yet" in standin.races()[0]
    assert standin.races() == []
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        made + 1
    made.add_(1)
    assert "may still use" in standin.races()[0]
    assert (tmp_path / "log").read_text().count("race: ") == 2


@on_standin(manual=True)
def test_host_wait_orders_streams() -> None:
    side, made = torch.Stream(DEVICE), torch.ones(1000, device=DEVICE)
    torch.accelerator.synchronize()
    with side:
        made.add_(1)
    side.synchronize()
    made.add_(1)
    assert standin.races() == []


@on_standin(manual=True)
def test_pinned_source_that_changes_under_its_copy_is_a_race() -> None:
    source = torch.ones(1000).pin_memory()
    target = source.to(DEVICE, non_blocking=True)
    source.zero_()
    torch.accelerator.synchronize()
    assert "pinned source changed" in standin.races()[0]
    assert target.sum().item() == 1000


@on_standin(devices=2, manual=True)
def test_copy_between_devices_is_ordered_on_both() -> None:
    here = torch.arange(5, device=DEVICE)
    there = here.to("standin:1") * 2
    here.zero_()
    assert there.tolist() == [0, 2, 4, 6, 8]
    assert standin.races() == []


@on_standin()
def test_wait_lets_other_threads_use_python_and_the_device() -> None:
    other = torch.Stream(DEVICE)
    standin.next_kernel_takes(float("inf"))
    torch.ones(3, device=DEVICE)
    faults: list[BaseException] = []

    def wait() -> None:
        try:
            torch.accelerator.current_stream(DEVICE).synchronize()
        except torch.AcceleratorError as error:
            faults.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    with other:
        assert torch.ones(3, device=DEVICE).sum().item() == 3
    assert waiting.is_alive()
    standin.interrupt_kernels()
    waiting.join()
    assert "timed out" in str(faults[0])


@on_standin()
def test_threads_that_launch_together_do_not_block_each_other() -> None:
    results = []

    def compute() -> None:
        value = torch.ones(100, device=DEVICE, requires_grad=True)
        for _ in range(30):
            (value * 2).sum().backward()
        assert value.grad is not None
        results.append(value.grad[0].item())

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [60.0] * 3


@on_standin(dies_by=signal.SIGALRM)
def test_kernel_that_never_ends_blocks_its_waiters_until_they_are_killed() -> None:
    standin.next_kernel_takes(float("inf"))
    torch.ones(3, device=DEVICE)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    torch.accelerator.synchronize()


@on_standin(manual=True)
def test_backward_of_work_on_a_side_stream_is_ordered() -> None:
    side, weight = torch.Stream(DEVICE), torch.ones(100, device=DEVICE, requires_grad=True)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        loss = (weight * 2).sum()
    torch.accelerator.current_stream().wait_stream(side)
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.add_(1)[0].item() == 3
    assert standin.races() == []
