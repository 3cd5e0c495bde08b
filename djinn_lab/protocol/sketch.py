"""A few bytes of a tensor, hashed: tensors whose sketches differ are different, which saves reading them."""

from __future__ import annotations

from collections.abc import Callable

from blake3 import blake3

UNHASHED_BYTES_MIN = 4 * 2**20
"""Fewer bytes are hashed faster than the pool can be asked about their sketch."""
SAMPLES = 64
SAMPLE_BYTES = 64


def sketch_of(nbytes: int, read: Callable[[int, int], bytes | memoryview]) -> str:
    """Sketch ``nbytes``, :data:`UNHASHED_BYTES_MIN` at least. ``read(start, count)`` returns some of them."""
    hasher = blake3(nbytes.to_bytes(8, "little"))
    for sample in range(SAMPLES):
        hasher.update(read((nbytes - SAMPLE_BYTES) * sample // (SAMPLES - 1), SAMPLE_BYTES))
    return hasher.hexdigest()
