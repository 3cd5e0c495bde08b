"""One notebook's state: its session, its defaults, the cell that runs."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from djinn_lab.client.cell import Cell
from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.magics.dashboard_process import DashboardProcess
from djinn_lab.magics.options import CellOptions, default_options, parse_options
from djinn_lab.magics.progress import ProgressLine
from djinn_lab.magics.source import CellSource


class Notebook:
    """Lives as long as the extension is loaded. The session is opened by the first captured cell."""

    def __init__(self, shell: Any, every_cell: bool) -> None:
        self.shell = shell
        self.source = CellSource(every_cell)
        self.defaults: CellOptions | None = None
        self.dashboard = DashboardProcess()
        self._session: Session | None = None
        self._user_cell_runs = False

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = connect()
            self._session.recorder.may_display = lambda: self._user_cell_runs
        return self._session

    @property
    def has_session(self) -> bool:
        return self._session is not None

    def options(self, line: str, program: str) -> CellOptions:
        if self.defaults is None:
            self.defaults = default_options(default_profile())
        return parse_options(line, program, self.defaults)

    def cell(self, line: str) -> NotebookCell:
        """The context manager around a captured cell's code."""
        return NotebookCell(self, self.options(line, "%%djinn"))

    def before_cell(self, info: Any = None) -> None:
        """IPython's pre_run_cell: not called for silent requests, which is how variable inspectors ask."""
        self._user_cell_runs = True

    def after_cell(self, result: Any = None) -> None:
        self._user_cell_runs = False

    def close(self) -> None:
        self.dashboard.close()
        if self._session is not None:
            self._session.close()
            self._session = None


class NotebookCell:
    def __init__(self, notebook: Notebook, options: CellOptions) -> None:
        self._notebook = notebook
        self._options = options
        self._progress = ProgressLine(-1.0 if options.quiet else options.progress_after_s)
        self._cell: Cell | None = None

    def __enter__(self) -> Cell:
        notebook = self._notebook
        session = notebook.session
        executor = session.executor
        executor.on_update, executor.on_tick = self._progress.on_update, self._progress.tick
        self._cell = session.capture(
            f"In [{notebook.shell.execution_count}]",
            code=notebook.source.text,
            priority=self._options.priority,
            file=sys._getframe(1).f_code.co_filename,
        )
        return self._cell.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._cell is not None
        outcome = "DONE" if error is None else "FAILED"
        try:
            self._cell.__exit__(kind, error, traceback)
        except BaseException:
            outcome = "FAILED"
            raise
        finally:
            report = self._cell.report
            self._progress.finish(report, outcome)
            if self._options.report and not self._options.quiet:
                print(report)
