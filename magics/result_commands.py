"""``%djinn result`` and ``%djinn push``: what a cell gave, and what the next one need not upload."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves

from djinn_lab.client.cell import Cell
from djinn_lab.client.handle import CellHandle
from djinn_lab.client.session import Pushed, Session
from djinn_lab.config.fields import did_you_mean
from djinn_lab.errors import OptionError
from djinn_lab.magics.notebook import Notebook
from djinn_lab.magics.progress import ProgressLine
from djinn_lab.units import counted, format_bytes, format_seconds


def result(notebook: Notebook, words: list[str]) -> object:
    """Show what the last cell displayed, waiting if needed; with a handle's NAME or a JOB, that cell's."""
    cell = notebook.session.last_cell
    if words and not (cell is not None and (cell.report.job or "").startswith(words[0])):
        return _shown(_handle_called(notebook, words[0]))
    if cell is None:
        raise OptionError("no cell has been captured yet.", "Run a cell that begins with %%djinn.")
    return _shown(cell.handle) if cell.has_handle else _shown_of_cell(cell)


def _handle_called(notebook: Notebook, name: str) -> CellHandle:
    """Return the handle in a variable, or of a job by the first characters of its id."""
    held = notebook.shell.user_ns.get(name)
    if isinstance(held, CellHandle):
        return held
    known = [handle for handle in notebook.handles if handle.job is not None]
    found = [handle for handle in known if (handle.job or "").startswith(name)]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise OptionError(f"{name!r} matches {len(found)} jobs.", "Give more characters of the id.")
    variables = {k for k, v in notebook.shell.user_ns.items() if isinstance(v, CellHandle) and k[0] != "_"}
    hint = did_you_mean(name, sorted(variables))
    raise OptionError(
        f"{name!r} is neither a handle nor the job of one{hint or '.'}",
        "Handles are made by %%djinn -a -o NAME; of other cells, Out has what they displayed.",
    )


def _shown(handle: CellHandle) -> object:
    value = handle.get()
    if value is None:
        return f"{handle!r} displayed nothing: its last line is no expression, or None."
    return repr(value) if isinstance(value, str) else value


def _shown_of_cell(cell: Cell) -> object:
    value = cell.result
    if value is None:
        return f"{cell.report.cell} displayed nothing that is kept; Out has what cells displayed."
    return repr(value) if isinstance(value, str) else value


def push(notebook: Notebook, words: list[str]) -> str:
    """Upload a variable's tensors now, so that the next cell need not; the counterpart of ``pull``."""
    if not words:
        raise OptionError("%djinn push needs the name of a variable.", "For instance: %djinn push model")
    values = {name: variable_of_tensors(notebook, name) for name in words}
    return "\n".join(_said(name, _pushed(notebook.session, name, value)) for name, value in values.items())


def _pushed(session: Session, name: str, value: object) -> Pushed:
    """Push, with a line of progress once that takes longer than a moment."""
    executor = session.executor
    line = ProgressLine(session.profile.session.progress_after_s, uploads=lambda: executor.uploads.state)
    line.cell = f"push {name}"
    before, executor.on_tick = executor.on_tick, line.tick
    try:
        return session.push(value)
    finally:
        executor.on_tick = before
        line.end(f"push {name} has ended")


def _said(name: str, pushed: Pushed) -> str:
    if not pushed.tensors:
        return (
            f"pushed nothing of {name}: views or arrays share the memory of its tensors, so they stay plain"
        )
    stayed = (
        f"; {counted(pushed.plain, 'tensor')} stayed plain, since views or arrays share the memory"
        if pushed.plain
        else ""
    )
    return (
        f"pushed {name}: {counted(pushed.tensors, 'tensor')}, {format_bytes(pushed.nbytes)} "
        f"({format_bytes(pushed.sent_bytes)} sent) in {format_seconds(pushed.seconds)}{stayed}"
    )


def variable_of_tensors(notebook: Notebook, name: str) -> object:
    """Return the value of a variable that holds tensors. Raises OptionError for another one."""
    variables = notebook.shell.user_ns
    if name not in variables:
        given = notebook.shell.user_ns_hidden  # as IPython's own open
        known = [known for known in variables if known not in given and not known.startswith("_")]
        raise OptionError(
            f"there is no variable {name!r}{did_you_mean(name, known) or '.'}", "Check the spelling."
        )
    value = variables[name]
    if isinstance(value, torch.nn.Module):
        return value
    if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
        raise OptionError(
            f"{name!r} holds no tensor: it is of type {type(value).__name__}.",
            "Name a tensor, a torch.nn.Module, or a list, tuple or dictionary of tensors.",
        )
    return value
