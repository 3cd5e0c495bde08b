"""Every command has its section in docs/cli.md, and every section its command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from djinn_lab.cli.app import build_app

DOCS = Path(__file__).parents[2] / "docs"


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


def test_each_command_has_a_section_and_each_section_a_command() -> None:
    documented = re.findall(r"^## `djinn-lab ([a-z ]+)`$", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(commands(typer.main.get_command(build_app())))


def test_each_command_says_what_it_does() -> None:
    for group in (typer.main.get_command(build_app()),):
        assert all(command.help for command in group.commands.values())  # type: ignore[attr-defined]


def test_the_documented_graph_fields_are_those_of_the_graph() -> None:
    from djinn_lab.srg.graph import Node

    text = (DOCS / "srg.md").read_text()
    missing = [name for name in Node.__struct_fields__ if name != "id" and f"`{name}`" not in text]
    assert missing == []


def test_the_documented_profiles_are_those_that_exist() -> None:
    from djinn_lab.scheduler import SCHEDULER_PROFILES

    text = (DOCS / "scheduler.md").read_text()
    for profile in SCHEDULER_PROFILES.values():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{profile.name}`"))
        assert profile.objective in row
        assert f"{profile.reserve_fraction:.0%}".replace("%", " %") in row
