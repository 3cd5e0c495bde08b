"""A GPU's link: pinned memory, a stream for each direction, events for order. Never run on a GPU yet."""

from __future__ import annotations

from time import perf_counter

import torch

from djinn_lab.worker.host_arena import HostArena

PROBE_BYTES = 256 * 2**20
WEIGHT_STEP = 0x9E3779B97F4A7C15 - 2**64
"""Odd, so that every position counts and no two neighbours alike."""


class CudaLink:
    """Before a copy out its stream waits for all that was launched on the device's default stream, so for
    the last op that wrote what it reads; before a copy in likewise, for the last reader of memory that the
    allocator reuses. Copies are waited for before their storage may be written, freed or used."""

    fingerprints = "sums"

    def __init__(self, device: torch.device, arena: HostArena) -> None:
        self._device = device
        self._compute = torch.cuda.default_stream(device)
        self._out = torch.cuda.Stream(device)
        self._in = torch.cuda.Stream(device)
        self._weights = torch.empty(0, dtype=torch.int64, device=device)
        self.pinned = arena.pinned
        self.bytes_per_second: float | None = self._measure()

    def gather(self, device: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(self._out):
            self._out.wait_stream(self._compute)
            return device.contiguous()

    def fingerprint(self, device: torch.Tensor) -> bytes:
        """Two weighted wrap-around sums over the bytes as int64, taken on the device."""
        with torch.cuda.stream(self._out):
            self._out.wait_stream(self._compute)
            flat = device.contiguous().view(-1)
            rest = -flat.nbytes % 8
            if rest or flat.storage_offset() % 8:
                flat = torch.cat([flat, flat.new_zeros(rest)])
            words = flat.view(torch.int64)
            weights = self._weights_for(words.numel())
            mixed = (words ^ (words >> 29)) * weights
            sums = torch.stack([(words * weights).sum(), (mixed * weights).sum()])
            return sums.cpu().numpy().tobytes()

    def digest_before_copy(self, fingerprint: bytes) -> bytes | None:
        return None

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> None:
        with torch.cuda.stream(self._out):
            self._out.wait_stream(self._compute)
            host.view(device.shape).copy_(device, non_blocking=True)
        self._out.synchronize()

    def copy_in(self, host: torch.Tensor, device: torch.Tensor) -> None:
        with torch.cuda.stream(self._in):
            self._in.wait_stream(self._compute)
            source = host.view(device.shape)
            if device.is_contiguous():
                device.copy_(source, non_blocking=True)
            else:  # a strided end would be staged through pageable memory
                device.copy_(source.to(self._device, non_blocking=True))
        self._in.synchronize()

    def seconds(self, nbytes: int) -> float:
        return 0.0

    def _weights_for(self, count: int) -> torch.Tensor:
        if self._weights.numel() < count:
            steps = torch.arange(count, dtype=torch.int64, device=self._device)
            self._weights = steps * (2 * WEIGHT_STEP) + 1
        return self._weights[:count]

    def _measure(self) -> float:
        """Bytes per second from pinned memory to the device, the best of three."""
        host = torch.empty(PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=self._device)
        best = 0.0
        for _ in range(4):
            torch.cuda.synchronize(self._device)
            started = perf_counter()
            target.copy_(host, non_blocking=True)
            torch.cuda.synchronize(self._device)
            best = max(best, PROBE_BYTES / (perf_counter() - started))
        return best
