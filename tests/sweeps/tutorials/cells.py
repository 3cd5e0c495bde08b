"""A script, a notebook or the snippets of a page as cells, and running them: as they are, or each under
``%%djinn``.

Captured cells go through the very transforms that ``%load_ext djinn_lab`` installs; only the pool is in this
process.
"""

from __future__ import annotations

import ast
import json
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from in_process import InProcessBackend
from IPython.core.interactiveshell import InteractiveShell

from djinn_lab.capture.recorders import capturing, make_recorder
from djinn_lab.client.session import Session
from djinn_lab.magics.source import LAST, MARKER, CellSource, CellWrapper


def read_cells(path: Path, replacements: list[list[str]]) -> list[str]:
    """The code, with each replacement made (and an error when there is nothing to replace)."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    elif path.suffix == ".md":
        cells = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    else:
        cells = [text]
    for old, new in replacements:
        if not any(old in cell for cell in cells):
            raise ValueError(f"nothing to replace: {old!r}")
        cells = [cell.replace(old, new) for cell in cells]
    return cells


def without_imports(code: str) -> tuple[str, str]:
    """The imports at the top of a script, and the rest with its line numbers kept."""
    statements = ast.parse(code).body
    first = next(item for item in statements if not _is_import_or_docstring(item))
    lines = code.splitlines(keepends=True)
    return "".join(lines[: first.lineno - 1]), "\n" * (first.lineno - 1) + "".join(lines[first.lineno - 1 :])


def _is_import_or_docstring(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Import, ast.ImportFrom))


class NotebookShell(InteractiveShell):
    def enable_gui(self, gui: Any = None) -> None:
        """``%matplotlib inline`` has no window here."""


class Runner:
    """An IPython shell whose cells are captured by ``session``, else with a pool in this process, or not."""

    def __init__(self, captured: bool, session: Session | None = None) -> None:
        self.shell: Any = NotebookShell.instance()
        self.shell.colors = "NoColor"
        self.session = session
        self.recorder = session.recorder if session is not None else make_recorder(InProcessBackend(2**34))
        self._captured = captured
        if captured:
            source = CellSource(every_cell=False)
            self.shell.input_transformers_cleanup.append(source.transform_lines)
            self.shell.ast_transformers.append(CellWrapper(source))
            self.shell.user_ns.update({MARKER: self._cell, LAST: None})

    @contextmanager
    def _cell(self, options: str) -> Iterator[None]:
        if self.session is not None:
            with self.session.capture():
                yield
            return
        with capturing(self.recorder, "cell", ""):
            yield
            self.recorder.finish("cell end")

    def run(self, code: str, local: bool = False) -> None:
        """Raises what the cell raised. ``local``: not captured in any case."""
        captured = self._captured and not local and _is_code(code)
        ran = self.shell.run_cell(f"%%djinn\n{code}" if captured else code)
        ran.raise_error()


def _is_code(code: str) -> bool:
    """Not a cell magic, and not only shell commands and comments."""
    lines = [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and not lines[0].startswith("%%") and not all(line[0] in "!%?" for line in lines)


def short_traceback(error: BaseException) -> str:
    """The error and the innermost frames."""
    frames = traceback.format_tb(error.__traceback__)[-3:]
    return f"{type(error).__name__}: {error}"[:600] + "\n" + "".join(frames)[-900:]


Context = Callable[[], AbstractContextManager[None]]
