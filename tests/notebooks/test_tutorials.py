"""The tutorials run from top to bottom, and their saved outputs are those of such a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[2] / "notebooks" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))
EMPTY = "%reset -f\nfrom djinn_lab.pool.launch import stop_pool\nstop_pool()"
"""Takes all names away, and the pool of a tutorial that failed before it stopped its own."""


@pytest.fixture(scope="module")
def kernel() -> Iterator[NotebookClient]:
    """One kernel for all of them: loading torch takes longer than most."""
    client = NotebookClient(NotebookNode(), timeout=120, kernel_name="python3")
    with client.setup_kernel(cwd=str(FOLDER)):
        yield client


@pytest.mark.processes
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tutorial_runs(kernel: NotebookClient, path: Path) -> None:
    """Each asserts its own results."""
    emptied = nbformat.v4.new_code_cell(EMPTY)
    kernel.nb = nbformat.read(path, 4)
    try:
        for index, cell in enumerate(kernel.nb.cells):
            kernel.execute_cell(cell, index)  # a cell of text runs as nothing
    finally:
        kernel.execute_cell(emptied, 0)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_saved_outputs_are_of_one_run_and_name_no_machine(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error" or "raises-exception" in cell.metadata.tags, output
            assert output.get("name") != "stderr", output.text
            assert not [place for place in ("/home/", "/tmp/", "/root/") if place in str(output)]
