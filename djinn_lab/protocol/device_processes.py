"""What a process takes of an accelerator's memory beside the tensors of its sessions."""

from __future__ import annotations

COPIES_BYTES = 128 * 2**20
"""For copies between device and host: staged pieces, and weights of fingerprints."""
CUDA_CONTEXT_BYTES = 512 * 2**20
"""Of CUDA's driver and libraries, about: they tell it nowhere before it is taken."""
CONTEXT_BYTES = 64 * 2**20
"""Of other accelerators' drivers."""


def process_bytes(kind: str) -> int:
    """Return what each worker's process takes of a device of a kind; 0 for a CPU."""
    if kind == "cpu":
        return 0
    return COPIES_BYTES + (CUDA_CONTEXT_BYTES if kind == "cuda" else CONTEXT_BYTES)
