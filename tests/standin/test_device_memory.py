"""Device memory: a cache between tensors and the card, and a card between processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import standin
import torch
from isolated import on_standin

MIB = 2**20
DEVICE = "standin:0"
SMALL_CARD = {"memory_bytes": 256 * MIB, "context_bytes": 16 * MIB, "manual": True}


def block(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=DEVICE)


@on_standin(**SMALL_CARD)
def test_freed_memory_stays_reserved_until_the_cache_is_emptied() -> None:
    big = block(64)
    assert (standin.memory_allocated(0), standin.memory_reserved(0)) == (64 * MIB, 64 * MIB)
    address = big.data_ptr()
    del big
    assert (standin.memory_allocated(0), standin.memory_reserved(0)) == (0, 64 * MIB)
    assert standin.mem_get_info(0) == (176 * MIB, 256 * MIB)
    again = block(64)
    assert again.data_ptr() == address
    del again
    standin.empty_cache()
    assert standin.memory_reserved(0) == 0
    assert torch.accelerator.get_memory_info(0) == (240 * MIB, 256 * MIB)


@on_standin(**SMALL_CARD)
def test_cached_block_is_cut_and_joined_again() -> None:
    big = block(64)
    del big
    parts = [block(16) for _ in range(4)]
    assert standin.memory_reserved(0) == 64 * MIB
    del parts
    assert block(64).nbytes == 64 * MIB
    assert standin.memory_reserved(0) == 64 * MIB


@on_standin(**SMALL_CARD)
def test_small_tensors_share_a_segment_that_one_of_them_keeps() -> None:
    small = [torch.ones(10, device=DEVICE) for _ in range(100)]
    assert standin.memory_allocated(0) == 100 * 512
    assert standin.memory_reserved(0) == 2 * MIB
    del small[1:]
    standin.empty_cache()
    assert standin.memory_reserved(0) == 2 * MIB


@on_standin(**SMALL_CARD)
def test_cache_of_a_stream_serves_that_stream_alone() -> None:
    side = torch.Stream(DEVICE)
    big = block(64)
    del big
    with side:
        other = block(64)
    assert standin.memory_reserved(0) == 128 * MIB
    del other


@on_standin(**SMALL_CARD)
def test_out_of_memory_is_raised_after_the_cache_was_tried() -> None:
    parts = [block(50) for _ in range(4)]
    del parts
    whole = block(200)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        block(100)
    stats = torch.accelerator.memory_stats(0)
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (2, 1)
    assert whole.fill_(1).sum().item() == 200 * MIB


@on_standin(**SMALL_CARD)
def test_memory_recorded_on_another_stream_is_not_reused_before_that_is_done() -> None:
    side, big = torch.Stream(DEVICE), block(64)
    address = big.data_ptr()
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        big + 1
    big.record_stream(side)
    del big
    second = block(64)
    assert second.data_ptr() != address
    torch.accelerator.synchronize()
    assert block(64).data_ptr() == address
    assert standin.races() == []


@on_standin(**SMALL_CARD)
def test_storage_is_found_by_its_address_whoever_wraps_it() -> None:
    side, big = torch.Stream(DEVICE), block(64)
    again = torch.empty(0, dtype=torch.uint8, device=DEVICE).set_(big.untyped_storage())
    again.record_stream(side)
    standin.next_kernel_takes(9.0)
    with side:
        torch.ones(3, device=DEVICE)
    address = big.data_ptr()
    del big, again
    assert block(64).data_ptr() != address


@on_standin(memory_bytes=64 * MIB, context_bytes=0)
def test_thread_that_waits_for_memory_ends_when_the_kernel_is_interrupted() -> None:
    standin.next_kernel_takes(float("inf"))
    torch.ones(3, device=DEVICE)
    raised: list[BaseException] = []

    def want() -> None:
        try:
            block(100)
        except torch.AcceleratorError as error:
            raised.append(error)

    waiting = threading.Thread(target=want)
    waiting.start()
    standin.interrupt_kernels()
    waiting.join()
    assert len(raised) == 1


@on_standin(**SMALL_CARD)
def test_reuse_of_memory_that_another_stream_may_still_read_is_a_race() -> None:
    side, big = torch.Stream(DEVICE), block(64)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        big + 1
    del big
    block(64).zero_()
    assert "may still use" in standin.races()[0]


@on_standin(**SMALL_CARD)
def test_peak_is_kept_until_it_is_reset() -> None:
    big = block(64)
    del big
    assert torch.accelerator.max_memory_allocated(0) == 64 * MIB
    torch.accelerator.reset_peak_memory_stats(0)
    assert torch.accelerator.max_memory_allocated(0) == 0


@on_standin(**SMALL_CARD)
def test_context_does_not_survive_a_fork() -> None:
    torch.ones(3, device=DEVICE)
    child = os.fork()
    if child == 0:
        try:
            torch.ones(3, device=DEVICE)
        except RuntimeError as error:
            os._exit(0 if standin._is_in_bad_fork() and "forked subprocess" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


class OtherProcess:
    """A process that runs a function and lives until it is killed. Made before this one uses a device."""

    def __init__(self, function: Callable[[], object]) -> None:
        start_read, self._start = os.pipe()
        self._done, done_write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.read(start_read, 1)
            kept = function()
            os.write(done_write, b"." if kept is not None else b"?")
            signal.pause()

    def run(self) -> None:
        os.write(self._start, b".")
        assert os.read(self._done, 1) == b"."

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


@on_standin(**SMALL_CARD, card="card")
def test_processes_share_a_card_and_the_dead_hold_nothing(tmp_path: Path) -> None:
    other = OtherProcess(lambda: block(100))
    assert standin.mem_get_info(0) == (240 * MIB, 256 * MIB)
    other.run()
    assert standin.mem_get_info(0)[0] == (256 - 16 - 16 - 100) * MIB
    with pytest.raises(torch.OutOfMemoryError):
        block(130)
    other.kill()
    assert block(130).nbytes == 130 * MIB
    assert standin.mem_get_info(0)[0] == (256 - 16 - 130) * MIB


@on_standin(memory_bytes=64 * MIB, context_bytes=65 * MIB)
def test_context_without_room_is_out_of_memory() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="context"):
        torch.ones(3, device=DEVICE)
    with pytest.raises(torch.OutOfMemoryError, match="context"):
        torch.accelerator.get_memory_info(0)


@on_standin()
def test_pages_that_no_tensor_has_go_back_to_the_card_with_the_cache() -> None:
    """Also those of a segment that a small tensor has a part of, as with torch's expandable segments."""
    large = torch.ones(16 * MIB, device=DEVICE)
    del large
    small = torch.full((MIB,), 3.0, device=DEVICE)  # in the block that was freed
    middle = torch.full((MIB,), 4.0, device=DEVICE)
    del small
    assert torch.accelerator.memory_reserved(DEVICE) == 64 * MIB
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(DEVICE) <= 6 * MIB
    again = torch.full((16 * MIB,), 5.0, device=DEVICE)
    assert torch.equal(middle.cpu(), torch.full((MIB,), 4.0))
    assert torch.equal(again.cpu(), torch.full((16 * MIB,), 5.0))
    del middle, again
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(DEVICE) == 0
    assert standin.mem_get_info(DEVICE)[0] == 2**30 - 64 * MIB
