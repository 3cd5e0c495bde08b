"""A sample of the benchmarks runs, and says what docs/benchmarks.md says it does. No figure is judged here;
``make sweep-benchmarks`` runs all of them so."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import OURS, Figure, GoalResult
from benchmarks.machine import Machine
from benchmarks.samples import Summary

ROOT = Path(__file__).parents[2]
DOCUMENTED = (ROOT / "docs" / "benchmarks.md").read_text()
TIMEOUT_S = 540
SAMPLE = ("round-trip", "plan", "dashboard")
TOP = ("format", "finished_at", "quick", "commit", "machine", "figures")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def names(structure: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(structure)}


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_quick_run_measures_what_was_asked(tmp_path: Path) -> None:
    done = run("--quick", "--output", str(tmp_path), *SAMPLE)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("*.json")
    content = json.loads(path.read_text())
    assert set(content) == set(TOP)
    assert content["quick"]
    assert set(content["machine"]) == names(Machine)
    assert {item["benchmark"] for item in content["figures"]} == {*SAMPLE, "stages"}
    for item in content["figures"]:
        check_figure(item)


def check_figure(item: dict[str, Any]) -> None:
    assert set(item) == names(Figure)
    if item["skipped"] is not None:
        return
    assert OURS in item["series"]
    for summary in (*item["series"].values(), *item["ratios"].values()):
        assert set(summary) == names(Summary)
        assert summary["count"] >= 1
        assert summary["minimum"] <= summary["q1"] <= summary["median"] <= summary["q3"] <= summary["maximum"]
    assert set(item["ratios"]) == set(item["series"]) - {OURS}
    policies = item["facts"].get("values")  # zero has no ratio
    assert item["ratios"] or isinstance(policies, dict) or item["benchmark"] == "stages"
    assert item["facts"].get("equal", True)
    for goal in item["goals"]:
        assert set(goal) == names(GoalResult)


def test_each_benchmark_is_documented() -> None:
    from benchmarks.__main__ import TOPICS  # which loads them all

    assert [name for name in (*TOPICS, "stages") if f"## `{name}`" not in DOCUMENTED] == []


@pytest.mark.parametrize("structure", [Figure, Summary, GoalResult, Machine], ids=lambda item: item.__name__)
def test_each_field_is_documented(structure: Any) -> None:
    missing = [name for name in sorted(names(structure)) if f"`{name}`" not in DOCUMENTED]
    assert not missing


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    done = run("no-such-benchmark")
    assert done.returncode == 2
    assert "capture" in done.stderr
