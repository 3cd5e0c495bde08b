"""What programs call the tensor bytes that went ahead of them: by their BLAKE3 digest, or by a name that the
client drew for bytes that are new to the pool, which are hashed only if others turn out to be like them."""

from __future__ import annotations

import re
import uuid

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DRAWN = re.compile(r"fresh-[0-9a-f]{32}")


def draw_name() -> str:
    """Return a name for new bytes that cannot be guessed."""
    return f"fresh-{uuid.uuid4().hex}"


def is_digest(name: str) -> bool:
    return _DIGEST.fullmatch(name) is not None


def is_drawn(name: str) -> bool:
    return _DRAWN.fullmatch(name) is not None
