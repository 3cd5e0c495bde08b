"""Every notebook of the project runs, and its results equal plain torch."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from device_kind import KIND
from nbclient import NotebookClient
from real_pool import PoolUnderTest

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parents[2] / "notebooks"
SUMMARY = "application/vnd.djinn.quickstart+json"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path, memory_bytes=2**31) as pool:
        notebook = nbformat.read(path, 4)
        client = NotebookClient(notebook, timeout=240, kernel_name="python3")
        client.execute(env=pool.environment, cwd=str(FOLDER))
    found = [
        output["data"][SUMMARY]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if SUMMARY in output.get("data", {})
    ]
    if path.stem == "quickstart":
        assert set(found[0]) == {"search", "train", "generate"}
        differ = {name for name, row in found[0].items() if not row["equal"]}
        assert differ <= (set() if KIND == "cpu" else {"search"}), "attention adds up in another order"
        for row in found[0].values():
            assert row["device"].startswith(f"{KIND}:")


def test_notebooks_are_committed_without_outputs() -> None:
    for path in FOLDER.glob("*.ipynb"):
        for cell in nbformat.read(path, 4).cells:
            assert not cell.get("outputs"), f"{path.name} has outputs"
