"""What programs call the tensor bytes that went ahead of them, and sketches of those bytes.

A name is the bytes' BLAKE3 digest; or the client drew it for bytes that are new to the pool, which are hashed
only if others turn out to be like them. A sketch is a few bytes of a tensor, hashed: tensors whose sketches
differ are different, which saves reading them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from blake3 import blake3

UNHASHED_BYTES_MIN = 4 * 2**20
"""Fewer bytes are hashed faster than the pool can be asked about their sketch."""
SAMPLES = 64
SAMPLE_BYTES = 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DRAWN = re.compile(r"fresh-[0-9a-f]{32}")


def draw_name() -> str:
    """Return a name for new bytes that cannot be guessed."""
    return f"fresh-{uuid.uuid4().hex}"


def is_digest(name: str) -> bool:
    return _DIGEST.fullmatch(name) is not None


def is_drawn(name: str) -> bool:
    return _DRAWN.fullmatch(name) is not None


def sketch_of(nbytes: int, read: Callable[[int, int], bytes | memoryview]) -> str:
    """Sketch ``nbytes``, :data:`UNHASHED_BYTES_MIN` at least. ``read(start, count)`` returns some of them."""
    hasher = blake3(nbytes.to_bytes(8, "little"))
    for sample in range(SAMPLES):
        hasher.update(read((nbytes - SAMPLE_BYTES) * sample // (SAMPLES - 1), SAMPLE_BYTES))
    return hasher.hexdigest()
