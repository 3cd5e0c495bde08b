"""Public repositories, as bare git mirrors (``<folder>/<owner>+<name>/repo``) or plain checkouts
(``<folder>/<owner>+<name>`` or ``<folder>/<name>``). Only read; each run gets a copy in a fresh folder."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path


class MissingRepository(Exception):
    pass


def copy_repository(root: Path, repository: str, target: Path) -> None:
    """The files of ``owner/name`` at its newest commit, into ``target``."""
    owner, name = repository.split("/")
    bare = root / f"{owner}+{name}" / "repo"
    if bare.is_dir():
        _copy_bare(bare, target)
        return
    for checkout in (root / f"{owner}+{name}", root / name):
        if checkout.is_dir():
            shutil.copytree(checkout, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
            return
    raise MissingRepository(f"{repository} is not below {root}")


def _copy_bare(bare: Path, target: Path) -> None:
    """What a partial mirror has; files that it left out are left out."""
    git = ["git", "-C", str(bare)]
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    listed = subprocess.run([*git, "ls-tree", "-r", "-z", "HEAD"], capture_output=True, check=True).stdout
    entries = [line.split(b"\t", 1) for line in listed.split(b"\0") if line.startswith((b"100", b"120"))]
    asked = b"".join(meta.split()[2] + b"\n" for meta, _ in entries)
    stream = io.BytesIO(
        subprocess.run(
            [*git, "cat-file", "--batch"], input=asked, capture_output=True, check=True, env=environment
        ).stdout
    )
    for _, name in entries:
        header = stream.readline().split()
        if header[-1] == b"missing":
            continue
        data = stream.read(int(header[2]))
        stream.readline()
        path = target / name.decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def revision(root: Path, repository: str) -> str:
    """The commit that was run, where git knows it."""
    folder = root / repository.replace("/", "+")
    folder = folder / "repo" if (folder / "repo").is_dir() else folder
    found = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else ""
