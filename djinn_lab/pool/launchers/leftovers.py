"""Files of parked sessions that dead workers left: kept while a manifest names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


class Leftovers:
    """``directories``: where workers park sessions. Their files' names hold the process's number."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._files: set[Path] = set()

    def died(self, pid: int) -> None:
        """This worker's files have no owner any more."""
        for directory in self._directories:
            self._files.update(directory.glob(f"*-{pid}.*"), directory.glob(f"*-{pid}-*"))

    def sweep(self, manifests: Iterable[bytes]) -> None:
        """Remove those that no manifest names."""
        if not self._files:
            return
        needed = list(manifests)
        for path in list(self._files):
            name = str(path).encode()
            if not any(name in manifest for manifest in needed):
                path.unlink(missing_ok=True)
                self._files.discard(path)
