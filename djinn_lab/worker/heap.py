"""The memory of a worker's process, as the system gives it: bounded, counted, and returned.

The account (:mod:`djinn_lab.worker.memory_account`) counts tensors. A process holds more: what its allocator
keeps of freed tensors, holes in its heap, and what kernels allocate for themselves. Tensors lie in a heap of
their own where the extension is there (``native/heap.h``), and in glibc's, which returns every large block at
once, where it is not.
"""

from __future__ import annotations

import ctypes
import logging
from time import monotonic

import torch

from djinn_lab.worker.accelerator.device import is_accelerator, reserved_bytes
from djinn_lab.worker.executor import Executor

KEPT_PART = 8
"""Of freed tensors, an eighth of the device's memory is kept for the next ones."""
KEPT_BYTES_MIN = 2**25
LOOK_EVERY_S = 1.0
"""To count what malloc has, its free blocks are walked through."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h
_LARGE_BYTES = 2**20

SLACK_BYTES = 2**30

log = logging.getLogger(__name__)


def heap_limit(memory_bytes: int) -> int:
    """Return the most that a process may hold for a device's tensors, for what kernels take for themselves,
    and for what the heap keeps and cannot return."""
    return memory_bytes + memory_bytes // 2 + SLACK_BYTES


class Heap:
    """Put this process's CPU tensors where what is freed can be used again or returned. ``memory_bytes``: of
    the device. ``limit_bytes``: what the process may have for tensors, kernels and holes. One a process."""

    def __init__(self, executor: Executor | None, device: torch.device, memory_bytes: int) -> None:
        self.limit_bytes = heap_limit(memory_bytes)
        self._memory_bytes = memory_bytes
        self._executor = executor
        self._device = device
        self._looked_s = 0.0
        self._before_bytes = 0
        self._held_bytes = 0
        self._keep_glibc_small()
        if executor is not None:
            own = 0 if is_accelerator(device) else memory_bytes
            executor.keep_tensors_in_own_heap(max(KEPT_BYTES_MIN, own // KEPT_PART))
            self._before_bytes = self._malloc_bytes()

    def held_bytes(self) -> int:
        """Return what the process holds since its start for tensors and kernels, in use or not. Of a CPU, as
        it was within the last second."""
        if is_accelerator(self._device) or monotonic() - self._looked_s > LOOK_EVERY_S:
            self._look()
        return self._held_bytes

    def worn_out(self, used_bytes: int) -> bool:
        """Return whether the process holds far more than the ``used_bytes`` of tensors, and cannot return
        it: half of what its limit allows beside them."""
        beside_bytes = self.limit_bytes - self._memory_bytes
        if is_accelerator(self._device) or self.held_bytes() - used_bytes <= beside_bytes // 2:
            return False
        self.trim()
        return self._held_bytes - used_bytes > beside_bytes // 2

    def trim(self) -> None:
        """Return to the system what no tensor uses."""
        if is_accelerator(self._device):
            torch.accelerator.empty_cache()
        if self._executor is not None:
            self._executor.trim_heap()
        self._look()

    def _look(self) -> None:
        self._looked_s = monotonic()
        if is_accelerator(self._device):
            self._held_bytes = reserved_bytes(self._device)
        elif self._executor is not None:
            mapped, _, malloc = self._executor.heap_bytes()
            self._held_bytes = max(0, mapped + malloc - self._before_bytes)

    def _malloc_bytes(self) -> int:
        assert self._executor is not None
        return self._executor.heap_bytes()[2]

    def _keep_glibc_small(self) -> None:
        """One arena for all threads, as copies run in threads. Without the extension large tensors are mapped
        one by one: slower, since each has new pages, and returned when they are freed."""
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is None:
            log.warning("the C library has no mallopt: the worker's memory may grow with use")
            return
        mallopt(_M_ARENA_MAX, 1)
        if self._executor is None:
            mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
