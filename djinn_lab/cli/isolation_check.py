"""Whether this machine can close workers in: a canary enters their sandbox and tries what it forbids."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from djinn_lab.errors import UserError
from djinn_lab.protocol.isolation import STRONG, CanaryFindings
from djinn_lab.units import listed

CANARY = (sys.executable, "-m", "djinn_lab.worker.sandbox.canary")
WITHIN_S = 30.0


def send_canary() -> CanaryFindings:
    """Raises UserError when the canary does not come back."""
    with tempfile.TemporaryDirectory(prefix="djinn-canary-") as directory:
        (Path(directory) / "secret").write_text("secret")
        try:
            answer = subprocess.run(
                [*CANARY, directory],
                capture_output=True,
                timeout=WITHIN_S,
                check=True,
                stdin=subprocess.DEVNULL,
            )
            return msgspec.json.decode(answer.stdout, type=CanaryFindings)
        except (subprocess.SubprocessError, msgspec.DecodeError) as error:
            raise UserError(
                f"A process in the sandbox of workers did not report: {error}.",
                "Run `python -m djinn_lab.worker.sandbox.canary DIRECTORY` to see why; users share a machine "
                "safely only where it works.",
            ) from None


def describe(found: CanaryFindings) -> tuple[bool, str]:
    """Return whether several users may share a pool here, and what holds."""
    allowed = [attempt.act for attempt in found.attempts if not attempt.refused]
    refused = len(found.attempts) - len(allowed)
    text = f"level {found.level}: {refused} of {len(found.attempts)} forbidden acts refused"
    if allowed:
        text += f"; a worker could {listed(allowed)}"
    return found.works and found.level in STRONG and (found.level != "full" or not allowed), text
