"""What a worker's process may hold of its device, which other processes have, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep

import torch

from djinn_lab.protocol.device_processes import COPIES_BYTES
from djinn_lab.protocol.worker import Leased
from djinn_lab.worker.accelerator.device import (
    is_accelerator,
    limit_reserved,
    reserved_bytes,
)
from djinn_lab.worker.heap import Heap
from djinn_lab.worker.measuring import Measuring
from djinn_lab.worker.memory_account import MemoryAccount

RETURNS_WITHIN_S = 2.0
"""What a copy or a step of measuring still looks at is free soon; what is not by then stays the process's."""
LOOK_AGAIN_S = 0.005


class DeviceLease:
    """The account's limit, and on an accelerator that of torch's allocator, which keeps what tensors have
    freed. ``busy``: whether a segment runs, which must not wait while memory is returned."""

    def __init__(
        self,
        device: torch.device,
        account: MemoryAccount,
        heap: Heap,
        measuring: Measuring,
        busy: Callable[[], bool],
        send: Callable[[Leased], None],
    ) -> None:
        self._device, self._account, self._heap = device, account, heap
        self._measuring, self._busy, self._send = measuring, busy, send
        self._changing = threading.Lock()
        self._granted_bytes = account.limit_bytes
        self._asked = 0
        self.limit_reserved()

    def limit_reserved(self) -> None:
        """Hold the allocator to the lease, with what a measurement under way may take beside it."""
        if is_accelerator(self._device):
            limit_reserved(self._device, self._granted_bytes + self._measuring.beside_bytes)

    def change(self, limit_bytes: int) -> None:
        """Hold at most so many bytes from here on, and answer with how many it is: what an accelerator's
        allocator keeps of freed tensors is returned before others are given it."""
        with self._changing:
            self._asked += 1
            self._granted_bytes = self._account.lease(limit_bytes)
        if not is_accelerator(self._device):
            self._answer()
            return
        self._measuring.stop("another process has begun to use it")
        self.limit_reserved()
        if reserved_bytes(self._device) <= self._granted_bytes:
            self._answer()
        else:
            threading.Thread(target=self._return_memory, args=(self._asked,), daemon=True).start()

    def _return_memory(self, asked: int) -> None:
        until_s = monotonic() + RETURNS_WITHIN_S
        while asked == self._asked:
            self._heap.trim()
            left_bytes = reserved_bytes(self._device) - COPIES_BYTES
            if left_bytes <= self._granted_bytes or self._busy() or monotonic() > until_s:
                break
            sleep(LOOK_AGAIN_S)
        with self._changing:
            if asked == self._asked and left_bytes > self._granted_bytes:
                self._granted_bytes = self._account.lease(left_bytes)
                self.limit_reserved()
        self._answer()

    def _answer(self) -> None:
        self._send(Leased(self._granted_bytes))
