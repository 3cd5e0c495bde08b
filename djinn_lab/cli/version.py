"""``djinn-lab version``."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from djinn_lab.cli.output import print_line


def show_versions() -> None:
    """Show the versions to name in a bug report."""
    from djinn_lab.protocol.messages import PROTOCOL_VERSION
    from djinn_lab.protocol.version import VERSION
    from djinn_lab.system.commit import commit

    print_line(
        f"djinn-lab {VERSION} (commit {commit() or 'unknown'}), protocol {PROTOCOL_VERSION}, "
        f"torch {installed_version('torch')}, Python {platform.python_version()}"
    )


def installed_version(package: str) -> str:
    """The version of an installed package without importing it, or ``not installed``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
