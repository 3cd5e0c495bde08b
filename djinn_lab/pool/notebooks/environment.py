"""The environment of a batch notebook's kernel."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from djinn_lab.jobs.batch import Notebook
from djinn_lab.pool.notebooks.messages import SESSION_FILE
from djinn_lab.protocol.notebooks import CELL_OPTIONS_VARIABLE, DEADLINE_VARIABLE

KEPT_VARIABLES = frozenset({"DJINN_CONFIG_DIR", "DJINN_TRACES"})
PRIVATE_PREFIXES = ("DJINN_", "PG")


def kernel_environment(notebook: Notebook, url: str, token: str, directory: Path) -> dict[str, str]:
    """The pool's own, without what opens it; every cell has the notebook's terms. ``directory``: of the
    attempt."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or not name.startswith(PRIVATE_PREFIXES)
    }
    kept["DJINN_POOL"], kept["DJINN_TOKEN"] = url, token
    kept["DJINN_SESSION_FILE"] = str(directory / SESSION_FILE)
    kept[CELL_OPTIONS_VARIABLE] = shlex.join(_cell_options(notebook))
    kept["JPY_SESSION_NAME"] = f"{notebook.name}.ipynb"
    if notebook.deadline_s is not None:
        kept[DEADLINE_VARIABLE] = repr(notebook.deadline_s)
    return kept


def _cell_options(notebook: Notebook) -> Iterator[str]:
    """As ``%djinn_config`` takes them."""
    yield from (f"--priority={notebook.priority}", "--progress-after=-1")
    if notebook.target is not None:
        yield f"--target={notebook.target}"
    yield from (f"--tolerate={taint}" for taint in notebook.tolerates)
