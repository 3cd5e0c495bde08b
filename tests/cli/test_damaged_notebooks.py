"""A damaged notebook is refused by name, or is one that can be sent."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from damage import damaged
from hypothesis import HealthCheck, given, settings

from djinn_lab.cli.submit import read_notebook
from djinn_lab.errors import UserError

CELLS = [
    {"cell_type": "markdown", "id": "m", "metadata": {}, "source": "# a"},
    {
        "cell_type": "code",
        "id": "c",
        "metadata": {"tags": ["parameters"]},
        "execution_count": 1,
        "outputs": [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}],
        "source": ["a = 1\n", "a"],
    },
]
METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python", "language": "python"},
    "language_info": {"name": "python"},
}
NOW = {"cells": CELLS, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
OLD = {
    "nbformat": 3,
    "nbformat_minor": 0,
    "metadata": {"name": ""},
    "worksheets": [{"metadata": {}, "cells": [{"cell_type": "code", "language": "python", "input": "1"}]}],
}
SOURCES = tuple(json.dumps(one, indent=1).encode() for one in (NOW, OLD))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged(SOURCES))
def test_damaged_notebook_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.ipynb"
    path.write_bytes(content)
    refused = ""
    try:
        msgspec.json.encode(read_notebook(path))
    except UserError as error:
        refused = str(error)
    assert not refused or path.name in refused
