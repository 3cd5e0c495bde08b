"""The product's own version, which the package's metadata are made from, and the versions of torch that it is
for."""

from __future__ import annotations

VERSION = "0.2.0"
TORCH_MIN, TORCH_BELOW = (2, 13), (3,)
"""The oldest torch that ``make sweep-torch`` passes with, and the first that is not tried."""
TORCH_LEAST = ".".join(map(str, TORCH_MIN))
TORCH_WANTED = f"torch>={TORCH_LEAST},<{TORCH_BELOW[0]}"
"""As pip takes it."""


def minor_of(torch_version: str) -> tuple[int, ...]:
    """Return ``(2, 13)`` for ``2.13.0+cpu``. Ops and kernels differ between minor versions."""
    return tuple(int(part) for part in torch_version.split("+")[0].split(".")[:2] if part.isdigit())
