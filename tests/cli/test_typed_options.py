"""The command that starts a pool again: as it was typed, from any folder, and without a password."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from djinn_lab.cli.pool import build_group, typed_options


def remembered(*arguments: str) -> list[str]:
    start = typer.main.get_command(build_group()).commands["start"]  # type: ignore[attr-defined]
    return typed_options(start.make_context("start", list(arguments)))


def test_options_are_kept_as_typed_and_defaults_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_DATABASE", "sqlite:////elsewhere/pool.sqlite3")
    typed = ["--devices", "cpu:2", "--memory", "1.5GiB", "--no-tls", "--standby", "--no-restart"]
    found = remembered(*typed, "-p", "team", "--wait", "9")
    database = ["--database", "sqlite:////elsewhere/pool.sqlite3"]
    assert sorted(found) == sorted([*typed, "--profile", "team", *database])
    assert remembered("--wait", "9") == []


def test_repeated_options_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJINN_DATABASE", raising=False)
    typed = ["--identity-provider", "one", "--identity-provider", "two"]
    assert remembered(*typed) == typed


def test_passwords_of_databases_are_not_kept() -> None:
    found = remembered("--database", "postgresql://pool:secret@db.example/pool")
    assert found == ["--database", "postgresql://pool:***@db.example/pool"]


def test_files_are_kept_with_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJINN_DATABASE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.json").touch()
    assert remembered("--queue-policy", "ours.json") == ["--queue-policy", str(tmp_path / "ours.json")]
    assert remembered("--queue-policy", "default") == ["--queue-policy", "default"]
