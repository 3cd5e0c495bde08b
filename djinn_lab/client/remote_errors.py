"""From an error that the pool reports to the exception that the cell raises.

A worker-side error keeps its Python type, so that a cell catches it as it would catch eager's: it is a
subclass of the original, torch's own included, and of :class:`~djinn_lab.errors.RemoteError`. It shows the
lines of the cell around the op; the worker's frames are kept beside. Faults of the pool are another family.
"""

from __future__ import annotations

import builtins
import linecache
from functools import cache

import torch

from djinn_lab.errors import (
    CellCancelled,
    DeviceMemoryError,
    PoolError,
    Refused,
    RemoteError,
    ValueLost,
    WorkerLost,
)
from djinn_lab.protocol.messages import ErrorInfo
from djinn_lab.srg.program import Program, Scope

LINES_AROUND = 2


def to_exception(error: ErrorInfo, program: Program, file: str) -> BaseException:
    """``file``: with the cell's code, as tracebacks name it."""
    place = _place(error, program)
    if error.family == "user":
        kind = _also(RemoteError, error.type_name, error.type_name)
        return kind(f"{error.message}{place}", error.advice, _source(error, program, file), error.frames)
    if error.family == "memory":
        advice = error.advice or "Use a smaller batch, or delete tensors you no longer need (del x)."
        kind = _also(DeviceMemoryError, "DeviceMemoryError", "OutOfMemoryError")
        return kind(f"{error.message}{place}", advice, _source(error, program, file), error.frames)
    if error.family == "cancelled":
        return CellCancelled(error.message)
    fault = {"WorkerLost": WorkerLost, "ValueLost": ValueLost}.get(error.type_name)
    if fault is not None:
        return fault(f"{error.message}{place}", error.advice)
    if error.family in ("refused", "missing_blobs"):
        return Refused(f"{error.message}{place}", error.advice)
    return PoolError(f"{error.type_name}: {error.message}{place}", error.advice or _frames(error))


def _scope(error: ErrorInfo, program: Program) -> Scope | None:
    if error.node is None or not 0 <= error.node < len(program.nodes):
        return None
    return program.scopes[program.nodes[error.node].scope]


def _source(error: ErrorInfo, program: Program, file: str) -> list[str]:
    """Return the lines around the op's, which has an arrow."""
    scope = _scope(error, program)
    lines = linecache.getlines(file)
    if scope is None or not 1 <= scope.line <= len(lines):
        return []
    first, last = max(1, scope.line - LINES_AROUND), min(len(lines), scope.line + LINES_AROUND)
    return [
        f"{'----> ' if number == scope.line else '      '}{number} {lines[number - 1].rstrip()}".rstrip()
        for number in range(first, last + 1)
    ]


def _place(error: ErrorInfo, program: Program) -> str:
    scope = _scope(error, program)
    if scope is None:
        return ""
    where = f"{scope.cell}, line {scope.line}" if scope.line else scope.cell
    module = f", in {scope.module}" if scope.module else ""
    return f" [recorded at {where}{module}; op {error.op}]"


def _frames(error: ErrorInfo) -> str:
    return "On the worker:\n" + "\n".join(error.frames[-4:]) if error.frames else ""


@cache
def _also(base: type[RemoteError], name: str, original_name: str) -> type[RemoteError]:
    """Return a subclass of ``base`` and of the builtin or torch exception that is called ``original_name``;
    ``base`` where there is none."""
    original = getattr(builtins, original_name, None) or getattr(torch._C, original_name, None)
    if not (isinstance(original, type) and issubclass(original, Exception)) or issubclass(original, OSError):
        return base
    try:
        return type(name, (base, original), {"__module__": base.__module__})
    except TypeError:  # two layouts that Python cannot combine
        return base
