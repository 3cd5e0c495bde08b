"""Where built files are looked for and where new ones go."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
BUILT = Path("native") / "built"


@dataclass(frozen=True)
class BuildFolders:
    """``package`` holds the sources. ``search`` is looked through in order; ``into`` takes what is built."""

    package: Path
    search: tuple[Path, ...]
    into: Path


def places(package: Path = PACKAGE) -> BuildFolders:
    """Return the places of this installation.

    A source checkout keeps its files beside the package. An installed package may have come with files beside
    it; what is built later goes to the user's cache, in a folder of this installation's own.
    """
    beside = package / BUILT
    if (package.parent / "pyproject.toml").is_file() and os.access(package / "native", os.W_OK):
        return BuildFolders(package, (beside,), beside)
    import platformdirs  # not there while pip builds the package

    installation = hashlib.sha256(os.fsencode(package)).hexdigest()[:12]
    cache = platformdirs.user_cache_path("djinn-lab", appauthor=False) / "native" / installation
    return BuildFolders(package, (beside, cache), cache)
