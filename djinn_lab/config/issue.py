"""What is wrong with a profile, and what to do about it."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning"]


class Issue(msgspec.Struct, frozen=True):
    """``path`` is a setting such as ``pool.devices``. An ``error`` keeps a profile from being saved."""

    path: str
    severity: Severity
    message: str
    fix: str

    def sentence(self) -> str:
        """Path, message and fix on one line."""
        return f"{self.path}: {self.message}. {self.fix}"
