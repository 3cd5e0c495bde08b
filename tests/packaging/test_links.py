"""A checkout without symbolic links, as git makes it on Windows: its parts import, and it is clean to git."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from djinn_lab.system.links import LINKED, CannotLink, link_folders

ROOT = Path(__file__).parents[2]
IDENTITY = ("-c", "user.name=a test", "-c", "user.email=test@example.org")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *IDENTITY, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of a small repository of this one's form, with text files in place of the links."""
    origin = tmp_path / "origin"
    (origin / "djinn_lab").mkdir(parents=True)
    shutil.copy(ROOT / ".gitignore", origin)
    (origin / "djinn_lab" / "__init__.py").write_text("")
    for name in LINKED:
        (origin / name).mkdir()
        (origin / name / "part.py").write_text(f"NAME = {name!r}\n")
        (origin / "djinn_lab" / name).symlink_to(Path("..") / name)
    git("-C", str(origin), "init", "-q")
    git("-C", str(origin), "add", ".")
    git("-C", str(origin), "commit", "-q", "-m", "first")
    git("clone", "-q", "-c", "core.symlinks=false", str(origin), str(tmp_path / "clone"))
    return tmp_path / "clone"


def status(checkout: Path) -> str:
    return git("-C", str(checkout), "status", "--porcelain")


def imported(checkout: Path, name: str) -> str:
    code = f"from djinn_lab.{name}.part import NAME; print(NAME)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_text_files_become_links_that_import_and_that_git_calls_clean(checkout: Path) -> None:
    assert (checkout / "djinn_lab" / "magics").is_file()
    assert link_folders(checkout / "djinn_lab") == list(LINKED)
    assert [imported(checkout, name) for name in LINKED] == list(LINKED)
    assert status(checkout) == ""
    assert link_folders(checkout / "djinn_lab") == []


def test_git_calls_the_checkout_clean_where_a_link_is_a_folder_to_it(checkout: Path) -> None:
    """So git sees a junction."""
    link_folders(checkout / "djinn_lab")
    for name in LINKED:
        (checkout / "djinn_lab" / name).unlink()
        shutil.copytree(checkout / name, checkout / "djinn_lab" / name)
    assert status(checkout) == ""
    (checkout / "magics" / "part.py").write_text("NAME = 'edited'\n")
    assert status(checkout) == " M magics/part.py\n"


def test_links_of_a_checkout_with_links_stay(tmp_path: Path) -> None:
    for name in LINKED:
        (tmp_path / name).mkdir()
        (tmp_path / "djinn_lab").mkdir(exist_ok=True)
        (tmp_path / "djinn_lab" / name).symlink_to(Path("..") / name)
    assert link_folders(tmp_path / "djinn_lab") == []


def test_links_of_an_archive_without_links_are_made(tmp_path: Path) -> None:
    (tmp_path / "djinn_lab").mkdir()
    for name in LINKED:
        (tmp_path / name).mkdir()
    assert link_folders(tmp_path / "djinn_lab") == list(LINKED)


def test_file_of_another_content_is_refused_and_kept(checkout: Path) -> None:
    file = checkout / "djinn_lab" / "magics"
    file.write_text("my notes")
    with pytest.raises(CannotLink, match=r"is a file that git did not write\. Remove it"):
        link_folders(checkout / "djinn_lab")
    assert file.read_text() == "my notes"


def test_missing_folder_is_refused_with_what_to_do(checkout: Path) -> None:
    shutil.rmtree(checkout / "magics")
    with pytest.raises(CannotLink, match=r"magics is missing.*Take a complete checkout"):
        link_folders(checkout / "djinn_lab")
