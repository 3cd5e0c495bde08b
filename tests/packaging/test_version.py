"""One version everywhere, and the commit beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from djinn_lab.protocol.messages import PROTOCOL_VERSION
from djinn_lab.protocol.version import VERSION
from djinn_lab.system.commit import STAMP, commit

ROOT = Path(__file__).parents[2]
IDENTITY = ("-c", "user.name=a test", "-c", "user.email=test@example.org")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *IDENTITY, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_changelog_begins_with_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION


def test_citation_names_this_version_and_license() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (str(citation["version"]), citation["license"]) == (VERSION, "Apache-2.0")


def test_version_command_names_version_commit_and_protocol() -> None:
    command = [sys.executable, "-m", "djinn_lab.cli", "version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
    here = commit() or "unknown"
    assert shown.startswith(f"djinn-lab {VERSION} (commit {here}), protocol {PROTOCOL_VERSION}, ")


def test_commit_of_a_checkout_says_whether_files_were_changed(tmp_path: Path) -> None:
    package = tmp_path / "djinn_lab"
    package.mkdir()
    (package / "module.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    git(tmp_path, "tag", "v9")
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert commit(package) == head
    (package / "module.py").write_text("changed = True\n")
    assert commit(package) == f"{head}-dirty"


def test_commit_of_an_installed_package_is_the_stamp(tmp_path: Path) -> None:
    package = tmp_path / "djinn_lab"
    (package / STAMP).parent.mkdir(parents=True)
    assert commit(package) == ""
    (package / STAMP).write_text("0123456789ab\n")
    assert commit(package) == "0123456789ab"
