"""The examples of docs/scheduler.md run, and its tables list the features and modes that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from programs import Script

from djinn_lab.scheduler import FEATURES, MODE_FEATURES
from djinn_lab.srg.graph import SRG

PAGE = (Path(__file__).parents[2] / "docs/scheduler.md").read_text()
SECTION = PAGE.partition("## Modes and features")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"^```python\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)


def a_graph() -> SRG:
    script = Script()
    value = script.source((64, 64), blob="0" * 64)
    return SRG.from_program(script.program(keep=(script.op("aten.relu.default", value),)))


@pytest.mark.parametrize("code", EXAMPLES, ids=["modes", "profiles", "progress"])
def test_an_example_runs(code: str, tmp_path: Path) -> None:
    """Each example asserts its own result."""
    assert "assert " in code
    exec(compile(code, "docs/scheduler.md", "exec"), {"graph": a_graph(), "folder": tmp_path})


def test_the_table_has_the_features_of_each_mode() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in SECTION.splitlines()]
    listed = {row[0].strip("`"): row for row in rows if len(row) == 5 and row[0].strip("`") in FEATURES}
    assert list(listed) == list(FEATURES)
    for number, mode in enumerate(MODE_FEATURES, 2):
        assert {name for name, row in listed.items() if row[number] == "yes"} == MODE_FEATURES[mode]
