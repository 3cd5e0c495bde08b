"""What runs on its own, before a commit and on a server, are commands of the Makefile."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / ".pre-commit-config.yaml"
WORKFLOWS = ROOT / ".github" / "workflows"


def commands_of_workflows() -> list[str]:
    found = []
    for file in WORKFLOWS.glob("*.yml"):
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            found += [step["run"] for step in job["steps"] if "run" in step]
    return found


def commands_of_hooks() -> list[str]:
    return [hook["entry"] for repo in yaml.safe_load(HOOKS.read_text())["repos"] for hook in repo["hooks"]]


def test_workflows_test_and_build_wheels_by_make() -> None:
    commands = commands_of_workflows()
    assert "make test" in commands
    assert any(command.startswith("make wheels ") for command in commands)
    assert [one for one in commands if not one.startswith(("make ", "git config "))] == []


def test_hooks_and_workflows_name_targets_that_exist() -> None:
    for command in (*commands_of_hooks(), *commands_of_workflows()):
        if command.startswith("make "):
            target = next(word for word in command.split()[1:] if not word.startswith("-"))
            planned = ["make", "--dry-run", "--directory", str(ROOT), target]
            subprocess.run(planned, check=True, capture_output=True)


def test_workflow_builds_for_every_python_that_the_package_names() -> None:
    named = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))
    jobs = yaml.safe_load((WORKFLOWS / "tests.yml").read_text())["jobs"]
    assert {f"cp{one.replace('.', '')}" for one in named} == set(
        jobs["wheels"]["strategy"]["matrix"]["python"]
    )
    assert named == set(jobs["wheels-macos"]["strategy"]["matrix"]["python"])
