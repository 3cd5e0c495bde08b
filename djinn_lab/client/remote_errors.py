"""From an error that the pool reports to the exception that the cell raises.

A worker-side error keeps its Python type, so that a cell catches it as it would catch eager's: it is a
subclass of the original, torch's own included, and of :class:`~djinn_lab.errors.RemoteError`. It shows the
cell line that recorded the op and the worker's frames. Faults of the pool are another family.
"""

from __future__ import annotations

import builtins
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
from djinn_lab.srg.program import Program


def to_exception(error: ErrorInfo, program: Program) -> BaseException:
    place = _place(error, program)
    if error.family == "user":
        kind = _also(RemoteError, error.type_name, error.type_name)
        return kind(f"{error.message}{place}", _frames(error) or error.advice)
    if error.family == "memory":
        advice = error.advice or "Use a smaller batch, or delete tensors you no longer need (del x)."
        kind = _also(DeviceMemoryError, "DeviceMemoryError", "OutOfMemoryError")
        return kind(f"{error.message}{place}", advice)
    if error.family == "cancelled":
        return CellCancelled(error.message)
    fault = {"WorkerLost": WorkerLost, "ValueLost": ValueLost}.get(error.type_name)
    if fault is not None:
        return fault(f"{error.message}{place}", error.advice)
    if error.family in ("refused", "missing_blobs"):
        return Refused(f"{error.message}{place}", error.advice)
    return PoolError(f"{error.type_name}: {error.message}{place}", error.advice or _frames(error))


def _place(error: ErrorInfo, program: Program) -> str:
    if error.node is None or not 0 <= error.node < len(program.nodes):
        return ""
    scope = program.scopes[program.nodes[error.node].scope]
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
