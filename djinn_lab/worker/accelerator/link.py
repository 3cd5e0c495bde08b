"""An accelerator's link: pinned memory, a stream for each direction and one for its fingerprints, which are
taken on the device. Its rate on a GPU is not measured yet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from djinn_lab.protocol.piece_names import (
    LANES,
    ROW_BYTES,
    lane_weights,
    named_by_sums,
    row_count,
    row_weights,
    sums_of,
)
from djinn_lab.worker.cuts import ACCELERATOR_PIECE_BYTES

BLOCK_ROWS = 1024
"""The sums of so much are taken at a time: their products take eight times its bytes."""
PROBE_BYTES = 32 * 2**20
"""Other processes' memory may have left little of a card."""


class AcceleratorLink:
    """Before bytes are looked at their stream waits for all that was launched on the device's default stream,
    so for the last op that wrote them, and a copy out for those who looked; before a copy in its stream waits
    likewise, for the last reader of memory that the allocator gives out again. Every call but
    :meth:`send_out` returns when the device is done with it, so that no op writes, frees or uses what is
    still being copied."""

    fingerprints = "lane sums"
    batch_bytes = 2**26
    """What is not in one run is staged on the device meanwhile."""
    chunk_bytes = 2**24

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compute = torch.accelerator.current_stream(device)
        self._looks = torch.Stream(device)
        self._out = torch.Stream(device)
        self._in = torch.Stream(device)
        self._looks_in = torch.Stream(device)
        # Now: it stays, and would split a large block that was freed.
        self._weights = SumWeights.on(device, ACCELERATOR_PIECE_BYTES)
        self._lock = threading.Lock()
        self.bytes_per_second: float | None = self._measure()

    def gather(self, device: torch.Tensor) -> torch.Tensor:
        with self._looks:
            self._looks.wait_stream(self._compute)
            return device.contiguous()

    def fingerprints_of(self, devices: Sequence[torch.Tensor]) -> list[bytes]:
        weights = self._weights_for(max(device.nbytes for device in devices))
        with self._looks:
            self._looks.wait_stream(self._compute)
            found = torch.stack([weighted_sums(device, weights) for device in devices]).cpu()
        return [row.numpy().tobytes() for row in found]

    def fingerprint_on_host(self, host: torch.Tensor) -> bytes:
        return sums_of(host.numpy().reshape(-1).data)

    def name(self, fingerprint: bytes, nbytes: int) -> bytes:
        return named_by_sums(fingerprint, nbytes)

    def send_out(self, devices: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor]) -> None:
        with self._out:
            self._out.wait_stream(self._looks)
            for device, host in zip(devices, hosts, strict=True):
                host.view(device.shape).copy_(device, non_blocking=True)

    def wait_out(self) -> None:
        self._out.synchronize()

    def copy_in(self, hosts: Sequence[torch.Tensor], devices: Sequence[torch.Tensor]) -> list[bytes]:
        weights = self._weights_for(max(device.nbytes for device in devices))
        sums = []
        self._in.wait_stream(self._compute)
        for host, device in zip(hosts, devices, strict=True):
            with self._in:
                if device.is_contiguous():
                    device.copy_(host.view(device.shape), non_blocking=True)
                else:  # a strided end would be staged through memory that is not pinned
                    device.copy_(host.to(self._device, non_blocking=True).view(device.shape))
            with self._looks_in:
                self._looks_in.wait_stream(self._in)
                sums.append(weighted_sums(device.contiguous(), weights))
        with self._looks_in:
            found = torch.stack(sums).cpu()
        return [row.numpy().tobytes() for row in found]

    def seconds(self, nbytes: int) -> float:
        return 0.0

    def _weights_for(self, nbytes: int) -> SumWeights:
        with self._lock:
            if self._weights.nbytes_max < nbytes:
                self._weights = SumWeights.on(self._device, nbytes)
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


@dataclass(frozen=True)
class SumWeights:
    """The weights of :mod:`djinn_lab.protocol.piece_names` on a device. ``lanes``: shape (2, 1, lanes),
    ``rows``: shape (2, rows), both int64."""

    lanes: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def on(cls, device: torch.device, nbytes: int) -> SumWeights:
        """For pieces of at most so many bytes."""
        lanes, rows = lane_weights(), row_weights(row_count(nbytes))
        return cls(
            torch.from_numpy(lanes).view(len(lanes), 1, LANES).to(device), torch.from_numpy(rows).to(device)
        )

    @property
    def nbytes_max(self) -> int:
        return int(self.rows.size(1)) * ROW_BYTES


def weighted_sums(memory: torch.Tensor, weights: SumWeights) -> torch.Tensor:
    """Return the two sums of contiguous uint8 memory: int64 on the same device, taken at the speed of its
    memory."""
    flat = memory.view(-1)
    rest = -flat.numel() % ROW_BYTES
    if rest or flat.storage_offset() % 2:
        flat = torch.cat([flat, flat.new_zeros(rest)])
    rows = flat.view(torch.int16).view(-1, LANES)
    of_rows = torch.cat([(block * weights.lanes).sum(2) for block in rows.split(BLOCK_ROWS)], 1)
    return (of_rows * weights.rows[:, : rows.size(0)]).sum(1)
