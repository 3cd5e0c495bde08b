"""The way between a device and its host, and the fingerprints of what goes over it.

A fingerprint is of the device's own bytes: taken when a piece is stored and compared after it was restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import blake3
import numpy as np
import torch

PIECE_OVERHEAD_S = 50e-6
"""What a copy of any size costs on a throttled link: launching one on a GPU, and hearing that it ended."""


class Link(Protocol):
    """Copies return when their bytes are there, but for :meth:`send_out`."""

    fingerprints: str
    """Names the kind of fingerprint; manifests say which it was."""
    bytes_per_second: float | None
    """Of each direction; None for a CPU's own memory."""
    batch_bytes: int
    """Pieces of so much together are copied at a time,"""
    chunk_bytes: int
    """and the next so much are looked at while those before them are on the way."""

    def gather(self, device: torch.Tensor) -> torch.Tensor:
        """The same bytes in one run, still on the device."""

    def fingerprints_of(self, devices: Sequence[torch.Tensor]) -> list[bytes]: ...

    def fingerprint_on_host(self, host: torch.Tensor) -> bytes:
        """The same of bytes that are on the host."""

    def name(self, fingerprint: bytes, nbytes: int) -> bytes:
        """Return the name of a piece with this fingerprint; see :mod:`djinn_lab.protocol.piece_names`."""

    def send_out(self, devices: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor]) -> None:
        """Begin to copy to the host. Both ends stay until :meth:`wait_out` returns."""

    def wait_out(self) -> None:
        """Return when all that was sent out is there."""

    def copy_in(self, hosts: Sequence[torch.Tensor], devices: Sequence[torch.Tensor]) -> list[bytes]:
        """The fingerprints of what is on the device then."""

    def seconds(self, nbytes: int) -> float:
        """Return the least time that a copy may take."""


class CpuLink:
    """The link of a device that is a process: both ends are memory, and the throttle makes a link of them.
    Copies by numpy, which lets other threads run and takes no threads of torch's."""

    fingerprints = "blake3"
    batch_bytes = chunk_bytes = 0

    def __init__(self, bytes_per_second: float = 0.0) -> None:
        self.bytes_per_second: float | None = bytes_per_second or None

    def gather(self, device: torch.Tensor) -> torch.Tensor:
        return device if device.is_contiguous() else torch.from_numpy(np.ascontiguousarray(device.numpy()))

    def fingerprints_of(self, devices: Sequence[torch.Tensor]) -> list[bytes]:
        return [digest(device) for device in devices]

    def fingerprint_on_host(self, host: torch.Tensor) -> bytes:
        return digest(host)

    def name(self, fingerprint: bytes, nbytes: int) -> bytes:
        return fingerprint

    def send_out(self, devices: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor]) -> None:
        for device, host in zip(devices, hosts, strict=True):
            np.copyto(host.numpy().reshape(device.shape), device.numpy())

    def wait_out(self) -> None:
        """All is there."""

    def copy_in(self, hosts: Sequence[torch.Tensor], devices: Sequence[torch.Tensor]) -> list[bytes]:
        for host, device in zip(hosts, devices, strict=True):
            np.copyto(device.numpy(), host.numpy().reshape(device.shape))
        return [digest(device) for device in devices]

    def seconds(self, nbytes: int) -> float:
        if self.bytes_per_second is None:
            return 0.0
        return PIECE_OVERHEAD_S + nbytes / self.bytes_per_second


def digest(memory: torch.Tensor) -> bytes:
    """BLAKE3 of a tensor's bytes in row-major order, on the host."""
    content = memoryview(np.ascontiguousarray(memory.numpy()).reshape(-1))  # type: ignore[arg-type]
    return blake3.blake3(content).digest()
