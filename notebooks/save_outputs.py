"""Run the tutorials, or the named notebooks, and save them with their outputs: ``make tutorials``."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent / "tutorials"


def main(named: list[str]) -> None:
    for path in [Path(name) for name in named] or sorted(FOLDER.glob("*.ipynb")):
        print(path)
        notebook = nbformat.read(path, 4)
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
        client.execute(cwd=str(path.parent))
        notebook.metadata.language_info = {"name": "python"}
        notebook.metadata.pop("widgets", None)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if is_shown(output)]
        nbformat.write(notebook, path)


def is_shown(output: NotebookNode) -> bool:
    """Return whether an output is more than a script or a widget of the running page."""
    return "data" not in output or bool(output.data.get("text/plain"))


if __name__ == "__main__":
    main(sys.argv[1:])
