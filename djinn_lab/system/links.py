"""The folders of the package that lie at the top of a checkout: links to them, also where git writes none.

Git on Windows writes a link as a text file with the link's target, and a source distribution has no links.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

LINKED = ("magics", "dashboard", "kernels")


class CannotLink(Exception):
    """A part of the package cannot be put where imports look for it; the message says what to do."""


def link_folders(package: Path) -> list[str]:
    """Link the parts at the top of the checkout into ``package`` and return the names of the new links.

    A link is a junction on Windows, which needs no rights, and a symbolic link elsewhere. Git is told to look
    at no link that replaces its text file. Raises CannotLink.
    """
    made = [name for name in LINKED if _link(package / name, package.parent / name)]
    _hide_from_git(package, made)
    return made


def _link(link: Path, folder: Path) -> bool:
    """Return whether a link was made."""
    if link.is_dir():
        return False
    if not folder.is_dir():
        raise CannotLink(f"{folder} is missing: djinn_lab needs it. Take a complete checkout or archive.")
    _remove_stand_in(link)
    try:
        _make(link, folder)
    except OSError as error:
        raise CannotLink(
            f"{link} cannot be made a link to {folder} ({error}). Copy the folder "
            "there, or use a file system with links and a folder that you may write."
        ) from error
    return True


def _remove_stand_in(link: Path) -> None:
    """Remove git's text file, or a link to where the checkout was before it moved."""
    if not os.path.lexists(link):
        return
    if stat.S_ISDIR(link.lstat().st_mode):  # a junction that leads nowhere
        link.rmdir()
    elif link.is_symlink() or link.read_text(encoding="utf-8").strip() == f"../{link.name}":
        link.unlink()
    else:
        raise CannotLink(f"{link} is a file that git did not write. Remove it, and install again.")


def _make(link: Path, folder: Path) -> None:
    if sys.platform == "win32":
        import _winapi

        _winapi.CreateJunction(str(folder.resolve()), str(link))
    else:
        link.symlink_to(Path("..") / folder.name, target_is_directory=True)


def _hide_from_git(package: Path, names: list[str]) -> None:
    """To git a junction is a folder in place of a tracked file."""
    checkout = package.parent
    if not names or not (checkout / ".git").exists() or shutil.which("git") is None:
        return
    paths = [f"{package.name}/{name}" for name in names]
    command = ["git", "-C", str(checkout), "update-index", "--skip-worktree", *paths]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise CannotLink(f"git was not told of the links: {ran.stderr.strip()}. Run {' '.join(command)}")
