"""The result file of a sweep that kills or stops things: one run of one commit."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import checkout_commit, now, this_machine


class Verdict(NamedTuple):
    """Whether something was right, and what was seen."""

    passed: bool
    said: str


class SweepResult:
    """``name``: of the sweep. Made before the sweep begins."""

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._seed = name, seed
        self._started, self._commit = time.monotonic(), checkout_commit()

    def write(self, folder: Path | None, **found: Any) -> dict[str, Any]:
        """Write what was found to a file of ``folder``; None: to no file. Return what the file has."""
        machine = this_machine()
        content = {
            "format": 1,
            "finished_at": now().isoformat(),
            "seconds": round(time.monotonic() - self._started),
            "machine": asdict(machine),
            "commit": self._commit,
            "seed": self._seed,
            **found,
        }
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self._name}-{machine.slug}-{now().date().isoformat()}.json"
            path.write_text(json.dumps(content, indent=1) + "\n")
            print(f"written to {path}")
        return content
