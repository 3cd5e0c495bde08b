"""Add the tutorials to the site: each notebook as a page, with the outputs that it was saved with."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[2] / "notebooks" / "tutorials"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_TO_PAGES = re.compile(r"\]\(\.\./\.\./docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook. MkDocs calls this before it reads the pages."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        page = page_of(nbformat.read(path, 4), path.name)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=page))
    return files


def page_of(notebook: NotebookNode, name: str) -> str:
    """Return a notebook as Markdown. ``name``: of its file, which the page names."""
    parts: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(_TO_PAGES.sub("](../", cell.source))
        else:
            parts.append(f"```python\n{cell.source}\n```")
            shown = "\n".join(filter(None, map(_text_of, cell.outputs)))
            if shown:
                parts.append(f"```text\n{shown}\n```")
    parts.append(f"*This page is the notebook `notebooks/tutorials/{name}`, with the outputs of one run.*")
    return "\n\n".join(parts)


def _text_of(output: NotebookNode) -> str:
    if output.output_type == "stream":
        text = output.text
    elif output.output_type == "error":
        text = f"{output.ename}: {output.evalue}"
    else:
        text = output.data.get("text/plain", "")
    return _ANSI.sub("", text).rstrip()
