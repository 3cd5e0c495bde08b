"""One notebook's state: its session, its defaults, the cell that runs."""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from IPython.core.interactiveshell import InteractiveShell

from djinn_lab.client.connect import connect, connect_again
from djinn_lab.client.handle import CellHandle
from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile, load_profile
from djinn_lab.errors import PoolNotFound
from djinn_lab.jobs import Terms
from djinn_lab.magics.anticipation import Anticipation, TypingWatch
from djinn_lab.magics.dashboard_process import DashboardProcess
from djinn_lab.magics.notebook_cell import NotebookCell
from djinn_lab.magics.options import CellOptions, default_options, parse_options
from djinn_lab.magics.own_gpu import OwnGpu
from djinn_lab.magics.session_note import SessionNote
from djinn_lab.magics.source import CellSource
from djinn_lab.magics.torch_versions import TorchVersionsNote
from djinn_lab.protocol.notebooks import CELL_OPTIONS_VARIABLE, DEADLINE_VARIABLE

DEADLINE_S_MIN = 0.001
PATH_VARIABLE = "JPY_SESSION_NAME"
"""Where Jupyter's server says which notebook a kernel is for."""
PATH_NAME = "__vsc_ipynb_file__"
"""The variable of the notebook where VS Code says so."""


def notebook_name(shell: InteractiveShell) -> str | None:
    """The notebook's file name, where the front end reports it, else None."""
    path = os.environ.get(PATH_VARIABLE) or str(shell.user_ns.get(PATH_NAME, ""))
    return Path(path).stem if path.endswith(".ipynb") else None


def within_deadline(options: CellOptions) -> CellOptions:
    """Return the options with the whole notebook's deadline, for a cell without one of its own."""
    given = os.environ.get(DEADLINE_VARIABLE)
    if given is None or options.terms.deadline_s is not None:
        return options
    left_s = max(DEADLINE_S_MIN, float(given) - time.time())
    return replace(options, terms=msgspec.structs.replace(options.terms, deadline_s=left_s))


class Notebook:
    """The state of one notebook, as long as the extension is loaded. The session is opened by the first
    captured cell. ``closed``: that of this shell before the extension was unloaded."""

    def __init__(self, shell: InteractiveShell, every_cell: bool, closed: Session | None = None) -> None:
        self.shell = shell
        self.source = CellSource(every_cell)
        self.defaults: CellOptions | None = None
        self.dashboard = DashboardProcess()
        self.handles: weakref.WeakSet[CellHandle] = weakref.WeakSet()
        self._session: Session | None = None
        self._closed = closed
        self._anticipation = Anticipation()
        self._note = SessionNote.from_environment()
        self._own_gpu = OwnGpu()
        self._torch_versions = TorchVersionsNote()
        self._typing = TypingWatch(self.typed)
        self._user_cell_runs = False

    @property
    def session(self) -> Session:
        if self._session is None:
            profile = self.options("", "%%djinn").profile
            again = None if self._closed is None else connect_again(self._closed, profile)
            self._session = again or connect(profile=profile, name=notebook_name(self.shell))
            self._outside_cells(self._session)
            self._note.update(self._session)
            self._session.recorder.may_display = lambda: self._user_cell_runs
        return self._session

    @property
    def pool(self) -> PoolClient:
        """Return the way to ask the pool, which opens no session where a pool runs: a viewer may look."""
        if self._session is None:
            with suppress(PoolNotFound):  # the session starts one
                return PoolClient.find()
        return self.session.pool

    @property
    def own(self) -> str:
        """Return the id of this notebook's session, nothing without one."""
        return "" if self._session is None else self._session.welcome.session

    @property
    def cells(self) -> list[str]:
        """Return the code of the cells that ran in this notebook, oldest first."""
        history = None if self.shell is None else self.shell.history_manager
        return [] if history is None else list(history.input_hist_raw)

    @property
    def has_session(self) -> bool:
        return self._session is not None

    def options(self, line: str, program: str) -> CellOptions:
        if self.defaults is None:
            given = os.environ.get(CELL_OPTIONS_VARIABLE, "")
            self.defaults = parse_options(given, "%djinn_config", default_options(default_profile()))
        return parse_options(line, program, self.defaults)

    def cell(self, line: str) -> NotebookCell:
        """Return the context manager around a captured cell's code."""
        options = within_deadline(self.options(line, "%%djinn"))
        return NotebookCell(self.session, self.shell, self.source.text, options, self.handles.add)

    def before_cell(self, info: object = None) -> None:
        """IPython's pre_run_cell: not called for silent requests, which is how variable inspectors ask."""
        self._user_cell_runs = True
        self._typing.show_again(self._cell_id())
        if self._session is not None:
            self._anticipation.soon(self._session)

    def after_cell(self, result: object = None) -> None:
        self._user_cell_runs = False
        if self._session is not None:
            self._anticipation.computed()
            self._note.update(self._session)
            self._own_gpu.look(self._session)
            self._torch_versions.look(self._session)

    def watch_typing(self) -> None:
        """Watch typing from now on, in a front end that can. It needs the output of a user's cell, so this
        does nothing while a kernel starts."""
        if self._request().get("msg_type") == "execute_request":
            self._typing.show(self._cell_id())

    def _cell_id(self) -> str | None:
        """Return the front end's name for the cell that runs, where it sends one (JupyterLab, Notebook)."""
        found = self._request().get("metadata", {}).get("cellId")
        return found if isinstance(found, str) else None

    def _request(self) -> dict[str, Any]:
        """Return the message that the kernel works on; empty in plain IPython."""
        kernel = getattr(self.shell, "kernel", None)
        request: dict[str, Any] = {} if kernel is None else kernel.get_parent("shell")
        return request

    def configure(self, line: str) -> None:
        """Set the defaults of this notebook's cells, and whether typing in it is watched."""
        self.defaults = self.options(line, "%djinn_config")
        if self._session is not None:
            if self._session.profile.name != self.defaults.profile:
                self._session.profile = load_profile(self.defaults.profile)
            self._outside_cells(self._session)
        if not self.defaults.typing:
            self._typing.close()
        elif "--typing" in line.split():
            self.watch_typing()

    def _outside_cells(self, session: Session) -> None:
        """Apply the options to fetches outside of cells. A fetch runs on the device that has the value, so a
        toleration counts, and a target does not."""
        options = self.options("", "%%djinn")
        session.executor.priority = options.priority
        session.executor.terms = Terms(tolerates=options.terms.tolerates)

    def typed(self) -> None:
        """Announce a cell, since the user types in one. Opens no session."""
        if self._session is not None:
            self._anticipation.soon(self._session)

    def close(self) -> Session | None:
        """End all that this notebook began, and return its session, to which variables may still belong."""
        self._typing.close()
        self.dashboard.close()
        if self._session is not None:
            self._session.close(keep=True)
            self._closed, self._session = self._session, None
        self._note.remove()
        return self._closed
