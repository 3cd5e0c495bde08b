"""How ``%%djinn`` works: a line transform and an AST wrap, so that the cell's own code runs in its own frame.

The first line ``%%djinn ...`` becomes a call on that same line (so line numbers hold), and the module
body becomes::

    with __djinn_cell__('...'):
        ...the cell...
        __djinn_last__ = <last expression>
    __djinn_last__

Top-level ``await``, tracebacks, the displayed last expression, ``;`` and nested magics work as in a plain
cell.
"""

from __future__ import annotations

import ast
import linecache
import re

from IPython.core.error import UsageError

MARKER = "__djinn_cell__"
LOCAL_MARKER = "__djinn_local__"
LAST = "__djinn_last__"

_CELL = re.compile(r"%%djinn(?:[ \t]+(?P<options>.*?))?[ \t]*$")
_LOCAL = re.compile(r"%%local[ \t]*$")
_OTHER = re.compile(r"%%(?P<name>\w+)")
_OF_PYTHON = frozenset(("time", "timeit", "capture", "prun", "memit", "mprun", "lprun", "debug"))
"""Cell magics whose cells are Python."""
COMPILING = ("prun", "timeit")
"""Those that compile the cell themselves, where no AST transformer sees it."""


class CellSource:
    """Remembers the text of the cell that is about to run. ``every_cell``: capture cells without
    ``%%djinn`` too."""

    def __init__(self, every_cell: bool) -> None:
        self.every_cell = every_cell
        self.text = ""

    def transform_lines(self, lines: list[str]) -> list[str]:
        """An IPython input transformer."""
        first = next((index for index, line in enumerate(lines) if line.strip()), None)
        if first is None:
            return lines
        head = lines[first].rstrip("\n")
        self.text = "".join(lines[first:])
        match = _CELL.match(head)
        if match is not None and not head.rstrip().endswith("?"):
            options = match["options"] or ""
            inner = _OTHER.match(lines[first + 1]) if len(lines) > first + 1 else None
            if inner is not None and inner["name"] not in ("djinn", "local"):
                return [*lines[:first], *_exchanged(lines[first:], inner["name"])]
            return [*lines[:first], f"{MARKER}({options!r})\n", *lines[first + 1 :]]
        if _LOCAL.match(head):
            return [*lines[:first], f"{LOCAL_MARKER}()\n", *lines[first + 1 :]]
        return lines


def _exchanged(lines: list[str], name: str) -> list[str]:
    """Return a cell with ``%%djinn`` beneath the other magic, which then hands it a cell of its own."""
    if name not in _OF_PYTHON:
        raise UsageError(
            f"%%djinn captures Python, and the cell of %%{name} may be something else. Leave %%djinn out, or "
            f"write it beneath %%{name} where that runs Python."
        )
    above = lines[0] if lines[0].endswith("\n") else lines[0] + "\n"
    beneath = lines[1] if lines[1].endswith("\n") else lines[1] + "\n"
    return [beneath, above, *lines[2:]]


def show_as_written(file: str, text: str) -> None:
    """Let tracebacks show the cell's first line as written. ``file``: the code's ``co_filename``."""
    entry = linecache.cache.get(file)
    if entry is None or len(entry) != 4 or not text:
        return
    lines = [text.splitlines()[0] + "\n" if line.startswith(MARKER) else line for line in entry[2]]
    linecache.cache[file] = (entry[0], entry[1], lines, entry[3])


class CellWrapper(ast.NodeTransformer):
    """An IPython AST transformer."""

    def __init__(self, source: CellSource) -> None:
        self._source = source

    def visit_Module(self, module: ast.Module) -> ast.Module:
        if not self.captures(module):
            return module
        body = module.body
        options = _marked(body[0], MARKER)
        if options is None:
            options = ast.Constant("")
            marker_line: ast.stmt = body[0]
        else:
            marker_line, body = body[0], body[1:]
        return self._wrap(module, body, options, marker_line)

    def captures(self, module: ast.Module) -> bool:
        """Return whether a cell is captured when it is run as such."""
        if not module.body or _marked(module.body[0], LOCAL_MARKER) is not None:
            return False
        marked = _marked(module.body[0], MARKER) is not None
        return marked or (self._source.every_cell and not _is_magic(module.body))

    def _wrap(
        self, module: ast.Module, body: list[ast.stmt], options: ast.expr, position: ast.stmt
    ) -> ast.Module:
        future = [item for item in body if isinstance(item, ast.ImportFrom) and item.module == "__future__"]
        body = [item for item in body if item not in future]
        shown: list[ast.stmt] = []
        if body and isinstance(body[-1], ast.Expr):
            last = body[-1]
            keep = ast.Assign([ast.Name(LAST, ast.Store())], last.value)
            show = ast.Expr(ast.Name(LAST, ast.Load()))
            body = [*body[:-1], ast.copy_location(keep, last)]
            shown = [ast.copy_location(show, last)]
            ast.fix_missing_locations(keep)
        call = ast.Call(ast.Name(MARKER, ast.Load()), [options], [])
        wrapped = ast.With([ast.withitem(call)], body or [ast.Pass()])
        ast.copy_location(wrapped, position)
        module.body = [*future, wrapped, *shown]
        return ast.fix_missing_locations(module)


def _marked(statement: ast.stmt, marker: str) -> ast.expr | None:
    """The argument of ``marker(...)`` when that is what the statement is."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Name) and call.func.id == marker:
            return call.args[0] if call.args else ast.Constant("")
    return None


def _is_magic(body: list[ast.stmt]) -> bool:
    """A cell that is one magic call (``%%bash``, ``%load_ext``) has nothing to capture."""
    if len(body) != 1 or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Call):
        return False
    function = body[0].value.func
    return isinstance(function, ast.Attribute) and function.attr in ("run_cell_magic", "run_line_magic")
