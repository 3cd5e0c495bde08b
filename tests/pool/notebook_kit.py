"""Notebooks to submit, in one line each."""

from __future__ import annotations

from typing import Any

import msgspec
import nbformat

from djinn_lab.protocol.rest.notebooks import NewNotebook


def document(*cells: str) -> dict[str, Any]:
    """Each cell has an output of an earlier run."""
    old = [nbformat.v4.new_output("stream", text="of an earlier run")]
    made = [nbformat.v4.new_code_cell(source, outputs=old, execution_count=7) for source in cells]
    return dict(nbformat.from_dict(nbformat.v4.new_notebook(cells=made)))


def new_notebook(name: str, *cells: str, **asked: Any) -> NewNotebook:
    """``key``: the name, where ``asked`` does not say otherwise."""
    fields = {"notebook": document(*cells), "name": name, "key": name, **asked}
    return msgspec.json.decode(msgspec.json.encode(fields), type=NewNotebook)
