"""The context manager around the code of one captured cell.

The stop button reaches the cell also where Python would swallow it.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from threading import Timer
from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell

from djinn_lab.capture.host.interrupts import entering, file_of_caller, whole
from djinn_lab.client.cell import Cell
from djinn_lab.client.cuts import forbid_cuts, loops_of_cuts, warning_of
from djinn_lab.client.dry_run import DryRun
from djinn_lab.client.explanation import explain_cell
from djinn_lab.client.handle import CellHandle
from djinn_lab.client.session import Session
from djinn_lab.client.verification import Verification
from djinn_lab.errors import OptionError
from djinn_lab.jobs import NO_TERMS, Priority
from djinn_lab.magics.cell_watcher import CellWatcher
from djinn_lab.magics.kept_names import KeptNames
from djinn_lab.magics.options import CellOptions
from djinn_lab.magics.progress import Outcome, ProgressLine
from djinn_lab.magics.source import LAST, show_as_written

AGAIN_AFTER_S = 0.005
"""Long enough for Python to have left what it reported from."""


@contextmanager
def stops_are_kept() -> Iterator[None]:
    """A KeyboardInterrupt that arrives while something is let go (in ``__del__``, or what
    :func:`weakref.finalize` calls) cannot leave from there: Python reports it and continues, and the cell
    would run to its end. Inside this it is raised again a moment later, at the latest at the end."""
    report = sys.unraisablehook
    swallowed: list[Timer] = []

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)
            return
        again = Timer(AGAIN_AFTER_S, _thread.interrupt_main)
        again.daemon = True
        swallowed.append(again)
        try:
            again.start()
        except KeyboardInterrupt:  # the thread was quicker, and what leaves from here is reported, too
            hook(unraisable)

    sys.unraisablehook = hook
    try:
        yield
        due = [timer for timer in swallowed if timer.is_alive()]
        if due:
            raise KeyboardInterrupt
    finally:
        for timer in swallowed:
            timer.cancel()
        if sys.unraisablehook is hook:
            sys.unraisablehook = report


def cell_name(shell: InteractiveShell, file: str) -> str:
    """``In [5]``, the number that the front end shows. (``shell.execution_count`` may be the next cell's.)"""
    label = shell.compile.format_code_name(file)
    return f"In [{shell.execution_count}]" if label is None else str(label[1]).replace("In[", "In [")


def without_our_frames(error: BaseException) -> None:
    """Leave in the traceback the frames that are not ours, if there are any: the others say nothing to a
    user. An assertion that failed is a defect of ours, and keeps all."""
    theirs: list[TracebackType] = []
    frame = error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_globals.get("__name__", "").startswith("djinn_lab."):
            theirs.append(frame)
        frame = frame.tb_next
    if not theirs or isinstance(error, AssertionError):
        return
    for one, following in zip_longest(theirs, theirs[1:]):
        one.tb_next = following
    error.__traceback__ = theirs[0]


def outcome_of(error: BaseException | None) -> Outcome:
    """Return how a cell ended that ended so."""
    if error is None:
        return "done"
    return "failed" if isinstance(error, Exception) else "cancelled"


URGENT = (Priority.CRITICAL, Priority.HIGH)


def may_be_refused(options: CellOptions) -> bool:
    """Return whether the pool may refuse a cell for what it asks of the queue, which only a submit shows.
    What the names of such a cell meant before stays alive until then, and its memory on the pool with it."""
    terms = options.terms
    asked = terms.target, terms.gang, terms.after
    return options.priority in URGENT or asked != (NO_TERMS.target, NO_TERMS.gang, NO_TERMS.after)


class NotebookCell:
    """The context manager that the AST wrap puts around a cell. ``sent``: is given the handle
    of one that is not waited for."""

    def __init__(
        self,
        session: Session,
        shell: InteractiveShell,
        text: str,
        options: CellOptions,
        sent: Callable[[CellHandle], None],
    ) -> None:
        self._sent = sent
        self._session = session
        self._shell = shell
        self._text = text
        self._options = options
        self._progress = ProgressLine(
            -1.0 if options.quiet else options.progress_after_s,
            lambda: session.recorder.segment.recorded,
            lambda: session.executor.uploads.state,
        )
        self._dry_run: DryRun | None = None
        self._names: KeptNames | None = None
        self._verification: Verification | None = None
        self._nested = False
        self._around = ExitStack()

    @entering
    def __enter__(self) -> Cell:
        with ExitStack() as entered:
            entered.enter_context(stops_are_kept())
            cell = self._begin(file_of_caller())
            self._around = entered.pop_all()
        return cell

    def _begin(self, file: str) -> Cell:
        session, options = self._session, self._options
        executor = session.executor
        self._nested = session.recorder.capturing
        show_as_written(file, self._text)
        self._progress.cell = cell_name(self._shell, file)
        cell = self._cell = session.capture(
            self._progress.cell,
            code=self._text,
            priority=options.priority,
            file=file,
            terms=options.terms,
            tolerance=options.tolerance,
            wait=not options.noblock,
        )
        if self._nested:
            if options.noblock:
                raise OptionError(
                    "%%djinn --noblock: this cell runs inside a captured one, which is sent as a whole.",
                    "Give --noblock to the outer cell.",
                )
            return cell.__enter__()
        if session.last_cell is not None and not session.last_cell.has_handle:
            session.last_cell.result = None
        executor.on_update, executor.on_tick = self._progress.on_update, self._progress.tick
        self._shell.user_ns[LAST] = None
        if options.dry_run or may_be_refused(options):
            self._names = KeptNames(self._shell.user_ns)
        if options.dry_run:
            self._dry_run = DryRun(session, cell)
            return self._dry_run.__enter__()
        cell.__enter__()
        self._inner = ExitStack()
        if options.strict:
            segment = session.recorder.segment
            self._inner.callback(setattr, segment, "before_cut", segment.before_cut)
            segment.before_cut = forbid_cuts
        if options.verify:
            self._verification = self._inner.enter_context(Verification(session, self._shell.user_ns))
        return cell

    @whole
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        __tracebackhide__ = True
        with self._around:
            return self._end(kind, error, traceback)

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        __tracebackhide__ = True
        if self._nested:
            self._cell.__exit__(kind, error, traceback)
            return False
        if self._dry_run is not None:
            return self._end_dry_run(self._dry_run, kind, error, traceback)
        if error is not None:
            without_our_frames(error)
        self._inner.__exit__(kind, error, traceback)
        self._progress.complete = True
        if self._options.noblock and error is None:
            self._leave()
            return False
        ended = error
        try:
            self._cell.__exit__(kind, error, traceback)
        except BaseException as failure:
            ended = failure
            without_our_frames(failure)  # of what a signal's handler raised while the cell ran
            raise
        finally:
            self._take_back_names(ended)
            self._report(self._progress, outcome_of(ended))
        self._cell.result = displayed = self._shell.user_ns.setdefault(LAST, None)  # after %reset
        if self._verification is not None and error is None:
            line = self._verification.conclude(displayed, self._cell.report.device)
            if not self._options.quiet:
                print(line)
        return False

    def _take_back_names(self, ended: BaseException | None) -> None:
        """Let names mean what they did before a cell that the pool refused, or that was stopped while it
        waited: what it gave them was not computed."""
        names, self._names = self._names, None
        if names is not None and self._cell.has_not_run(ended):
            names.put_back()
            ended.add_note("Nothing of the cell ran on the pool: variables of before it are what they were.")

    def _leave(self) -> None:
        """Send the cell, keep what it would have displayed for its handle, and display the handle."""
        shell, cell, options = self._shell, self._cell, self._options
        cell.result, shell.user_ns[LAST] = shell.user_ns.get(LAST), None
        if self._names is not None:
            self._names.leave()
        try:
            cell.__exit__(None, None, None)
        except BaseException as failure:
            self._take_back_names(failure)
            raise
        handle = cell.handle
        if cell.report.outcome == "pending":
            self._progress.finish(cell.report, "submitted")
        else:
            self._names = None
            self._report(self._progress, "done")
        watcher = CellWatcher(
            self._progress.cell, -1.0 if options.quiet else options.progress_after_s, self._end_left
        )
        self._sent(handle)
        if options.output is not None:
            shell.user_ns[options.output] = handle
        if not options.quiet and not shell.displayhook.quiet():
            watcher.show(handle)
        handle.watch(watcher)

    def _end_left(self, progress: ProgressLine, outcome: Outcome, error: BaseException | None) -> None:
        self._take_back_names(error)
        self._report(progress, outcome)

    def _report(self, progress: ProgressLine, outcome: Outcome) -> None:
        report, options = self._cell.report, self._options
        progress.finish(report, outcome)
        if options.explain:
            print("\n".join(explain_cell(self._session, self._cell)))
        if options.quiet:
            return
        if options.report:
            print(report)
        loops = loops_of_cuts(report.cuts)
        if loops:
            print(warning_of(loops), file=sys.stderr)

    def _end_dry_run(
        self,
        dry_run: DryRun,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """The plan is the output; what the cell would have displayed has no value."""
        ended = dry_run.__exit__(kind, error, traceback)
        self._shell.user_ns[LAST] = None
        assert self._names is not None
        self._names.put_back()
        self._names = None
        if dry_run.plan:
            print("\n".join(dry_run.plan))
        return ended
