"""An accelerator's link: pinned memory, a stream for each direction, fingerprints taken on the device. Its
rate on a GPU is not measured yet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter

import blake3
import torch

from djinn_lab.worker.cuts import ACCELERATOR_PIECE_BYTES
from djinn_lab.worker.link import digest

PROBE_BYTES = 32 * 2**20
"""As in a batch. Other processes' memory may have left little of a card."""


class AcceleratorLink:
    """Before a copy out its stream waits for all that was launched on the device's default stream, so for
    the last op that wrote what it reads; before a copy in likewise, for the last reader of memory that the
    allocator gives out again. Every call returns when the device is done with it,
    so that no op writes, frees or uses what is still being copied."""

    fingerprints = "sums"
    batch_bytes = 32 * 2**20
    """Launching and waiting for the end cost as much as copying two or three pieces."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compute = torch.accelerator.current_stream(device)
        self._out = torch.Stream(device)
        self._in = torch.Stream(device)
        # Now: it stays, and would split a large block that was freed.
        self._weights = weights_for(ACCELERATOR_PIECE_BYTES // 8, device)
        self._lock = threading.Lock()
        self.bytes_per_second: float | None = self._measure()

    def gather(self, device: torch.Tensor) -> torch.Tensor:
        with self._out:
            self._out.wait_stream(self._compute)
            return device.contiguous()

    def fingerprint(self, device: torch.Tensor) -> bytes:
        weights = self._weights_for(device.nbytes)
        with self._out:
            self._out.wait_stream(self._compute)
            return weighted_sums(device, weights).cpu().numpy().tobytes()

    def digest_before_copy(self, fingerprint: bytes) -> bytes | None:
        return None

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> None:
        with self._out:
            self._out.wait_stream(self._compute)
            host.view(device.shape).copy_(device, non_blocking=True)
        self._out.synchronize()

    def digest(self, host: torch.Tensor) -> bytes:
        return digest(host, blake3.blake3.AUTO)

    def copy_in(self, hosts: Sequence[torch.Tensor], devices: Sequence[torch.Tensor]) -> list[bytes]:
        weights = self._weights_for(max(device.nbytes for device in devices))
        with self._in:
            self._in.wait_stream(self._compute)
            sums = []
            for host, device in zip(hosts, devices, strict=True):
                if device.is_contiguous():
                    device.copy_(host.view(device.shape), non_blocking=True)
                else:  # a strided end would be staged through memory that is not pinned
                    device.copy_(host.to(self._device, non_blocking=True).view(device.shape))
                sums.append(weighted_sums(device.contiguous(), weights))
            found = torch.stack(sums).cpu()
        return [row.numpy().tobytes() for row in found]

    def seconds(self, nbytes: int) -> float:
        return 0.0

    def _weights_for(self, nbytes: int) -> torch.Tensor:
        words = -(-nbytes // 8)
        with self._lock:
            if self._weights.numel() < words:
                self._weights = weights_for(words, self._device)
                torch.accelerator.synchronize(self._device)
            return self._weights

    def _measure(self) -> float:
        """Bytes per second from pinned memory to the device, the best of a few."""
        host = torch.empty(PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=self._device)
        best = 0.0
        for _ in range(4):
            torch.accelerator.synchronize(self._device)
            started = perf_counter()
            target.copy_(host, non_blocking=True)
            torch.accelerator.synchronize(self._device)
            best = max(best, PROBE_BYTES / (perf_counter() - started))
        del target
        torch.accelerator.empty_cache()
        return best


WEIGHT_STEP = 0x3C6EF372FE94F82A
"""Even, so that all weights are odd and no bit of a word goes unseen; far from any simple ratio, so that
words which change places do not cancel out."""
MIXING_SHIFT = 29


def weights_for(words: int, device: torch.device) -> torch.Tensor:
    """One per 8 bytes."""
    return torch.arange(words, dtype=torch.int64, device=device) * WEIGHT_STEP + 1


def weighted_sums(memory: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return two weighted wrap-around sums of contiguous uint8 memory: two int64 on the same device, taken at
    the speed of its memory. ``weights``: at least one per 8 bytes begun."""
    flat = memory.view(-1)
    rest = -flat.numel() % 8
    if rest or flat.storage_offset() % 8:
        flat = torch.cat([flat, flat.new_zeros(rest)])
    words = flat.view(torch.int64)
    used = weights[: words.numel()]
    mixed = words ^ (words >> MIXING_SHIFT)
    return torch.stack([(words * used).sum(), ((mixed * used) >> MIXING_SHIFT).sum()])
