"""Files in which dead workers parked sessions. They stay as long as a session may be restored from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

MOVED = ".moved-"
"""In the names of files that hold a session which was parked on another host."""


class OrphanedFiles:
    """``directories``: where workers park sessions, each group below a directory of its own. Their files'
    names hold the process's number."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._files: set[Path] = set()

    def died(self, pid: int) -> None:
        """Note the files of a dead worker."""
        for directory in self._directories:
            self._files.update(directory.glob(f"*/*-{pid}.*"), directory.glob(f"*/*-{pid}-*"))

    def adopted(self, paths: Iterable[Path]) -> None:
        """Note files that a dead pool left."""
        self._files.update(paths)

    @property
    def files(self) -> list[Path]:
        """List them."""
        return sorted(self._files)

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove those of these files that are among them."""
        for path in self._files.intersection(paths):
            path.unlink(missing_ok=True)
            self._files.discard(path)

    def sweep(self, manifests: Iterable[bytes]) -> None:
        """Remove those that no manifest names."""
        if not self._files:
            return
        needed = list(manifests)
        self.remove([path for path in self._files if not is_named(str(path), needed)])


def is_named(path: str, manifests: Iterable[bytes]) -> bool:
    """Return whether one of the manifests names a file."""
    name = path.encode()
    return any(name in manifest for manifest in manifests)
