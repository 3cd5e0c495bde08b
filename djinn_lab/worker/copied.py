"""What becomes of a copy of session memory: what it has done so far, or why it ended."""

from __future__ import annotations

from dataclasses import dataclass


class TransferProblem(Exception):
    """``full`` and ``mismatch``: as in :class:`djinn_lab.protocol.worker.CopyFailed`."""

    def __init__(self, reason: str, full: str | None = None, mismatch: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.full = full
        self.mismatch = mismatch


class SessionGone(Exception):
    """Closed while it was copied: no answer is waited for."""


@dataclass
class Copied:
    """The progress of a transfer."""

    nbytes: int = 0
    checked_pieces: int = 0
    whole: bool = True
    manifest: bytes | None = None
