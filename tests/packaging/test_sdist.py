"""The source archive holds what a checkout holds, and builds the same wheel."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_wheel import ROOT, build_wheel

from djinn_lab.system.commit import commit
from djinn_lab.system.links import LINKED
from release.archives import build_sdist

LINKS = {f"djinn_lab/{name}" for name in LINKED}


@dataclass(frozen=True)
class Archive:
    """``names``: the files of the checkout. ``unpacked``: the archive that was built from them."""

    names: list[str]
    commit: str
    unpacked: Path


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a test", "-c", "user.email=test@example.org", "-c", "core.autocrlf=false")
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Built from a repository of the same files, so that the checkout stays clean."""
    if not (ROOT / ".git").exists():
        pytest.skip("git knows the files of a checkout")
    place = tmp_path_factory.mktemp("sdist")
    source = place / "source"
    names = [name for name in git(ROOT, "ls-files").splitlines() if (ROOT / name).is_file() or name in LINKS]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    git(source, "init", "-q")
    git(source, "add", "--all")
    git(source, "commit", "-q", "-m", "all")
    head = git(source, "rev-parse", "--short=12", "HEAD").strip()
    with tarfile.open(build_sdist(source, place)) as packed:
        packed.extractall(place / "unpacked", filter="data")
    [unpacked] = (place / "unpacked").iterdir()
    return Archive(names, head, unpacked)


def test_source_archive_holds_every_file_of_the_checkout(archive: Archive) -> None:
    """Tests, pages and license too; the links are made when it is built."""
    missing = {name for name in archive.names if not (archive.unpacked / name).is_file()}
    assert missing == LINKS


def test_source_archive_names_the_commit(archive: Archive) -> None:
    assert commit(archive.unpacked / "djinn_lab") == archive.commit


def test_wheel_of_the_source_archive_is_complete(archive: Archive) -> None:
    wheel = build_wheel(archive.unpacked, {"DJINN_LAB_NATIVE": "off"})
    parts = {"djinn_lab": "", "magics": "magics", "dashboard": "dashboard"}
    modules = {
        str(Path("djinn_lab", name, file.relative_to(ROOT / folder)))
        for folder, name in parts.items()
        for file in (ROOT / folder).rglob("*.py")
    }
    assert modules - set(wheel.namelist()) == set()
    assert wheel.read("djinn_lab/system/commit.txt").decode().strip() == archive.commit
