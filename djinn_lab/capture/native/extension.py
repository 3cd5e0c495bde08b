"""The compiled module, imported once. Import this file only where :func:`djinn_lab.native.load` finds it."""

from __future__ import annotations

from typing import Any

from djinn_lab.errors import CaptureError
from djinn_lab.native import load, why_missing

_found = load("recorder")
if _found is None:
    raise CaptureError(f"the native recorder is not there: {why_missing('recorder')}")
native: Any = _found
