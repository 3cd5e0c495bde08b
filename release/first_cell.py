"""Runs the README's cells as a new user does, by the Python of the environment that it is started with.

``first_cell.py README MONOTONIC``: prints as JSON what the cell showed, the seconds since that time, and the
file of each extension, or why it is not used.
"""

import json
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FILES = """
import json
from djinn_lab.native import EXTENSIONS, load, why_missing
from djinn_lab.native.compiler import find_compiler
files = {name: getattr(load(name), "__file__", why_missing(name)) for name in EXTENSIONS}
print(json.dumps({"compiler": str(find_compiler() or ""), "extensions": files}))
"""
CELL_WITHIN_S = 300


def main(readme: str, began_s: float) -> None:
    section = Path(readme).read_text(encoding="utf-8").partition("\n## One cell\n")[2].partition("\n## ")[0]
    sources = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    cells = [nbformat.v4.new_code_cell(text) for text in (*sources, FILES)]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=CELL_WITHIN_S, kernel_name="python3")
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells[:-1]):
            client.execute_cell(cell, index)
        took_s = time.monotonic() - began_s
        client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1)
    shown = [output["data"]["text/plain"] for output in notebook.cells[-2].outputs if "data" in output]
    printed = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
    print(json.dumps({"shown": shown[-1] if shown else "", "seconds": took_s, **json.loads(printed)}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
