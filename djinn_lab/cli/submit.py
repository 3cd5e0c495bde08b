"""``djinn-lab submit``: run a notebook as a batch job."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from djinn_lab.cli.notebooks import write_executed
from djinn_lab.cli.options import checked_priority
from djinn_lab.cli.output import print_line
from djinn_lab.errors import OptionError, PoolLost, PoolNotFound, UserError
from djinn_lab.jobs import Terms
from djinn_lab.jobs.batch import OVER, Restart, RestartRules
from djinn_lab.jobs.batch.parameters import declared, from_text, problem_with
from djinn_lab.jobs.batch.restarts import BACKOFF_S
from djinn_lab.jobs.conditions import separated
from djinn_lab.protocol.rest.notebooks import NewNotebook
from djinn_lab.units import parse_seconds

if TYPE_CHECKING:
    from djinn_lab.client.rest import PoolClient

Answer = TypeVar("Answer")

PERSIST_S = 30.0
RETRY_AFTER_S = 1.0
LOOK_EVERY_S = 0.5


def submit_notebook(
    notebook: Annotated[Path, typer.Argument(help="The .ipynb file.")],
    name: Annotated[str | None, typer.Option(help="Its name in lists. Default: the file's name.")] = None,
    key: Annotated[
        str | None, typer.Option(help="A repeated submission with this key is the same job.")
    ] = None,
    priority: Annotated[
        str, typer.Option(help="Priority, also the default of its cells: CRITICAL to SCAVENGER.")
    ] = "NORMAL",
    after: Annotated[
        list[str] | None,
        typer.Option(
            help="Start when this notebook or cell has succeeded; JOB:any: has ended; "
            "JOB:checkpoint or JOB:checkpoint=NAME: has announced it; data:NAME: it is published. Repeatable."
        ),
    ] = None,
    after_count: Annotated[
        int | None, typer.Option(min=1, help="Start once so many dependencies are met. Default: all.")
    ] = None,
    after_timeout: Annotated[
        str | None, typer.Option(help="Wait no longer for them than this; cancel it then.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter", "-p", help="NAME=VALUE for its cell tagged parameters, as papermill; repeatable."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="Devices or labels, for cells that name none: cuda:0, gpu=h200."),
    ] = None,
    tolerate: Annotated[
        list[str] | None, typer.Option(help="Its cells also run on devices with this taint; repeatable.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Finish within this time, such as 2h, if possible; stops nothing.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="Stop an attempt after this much run time.")] = None,
    restart: Annotated[str, typer.Option(help="When to run again: never, on-failure or always.")] = "never",
    restarts_max: Annotated[
        int | None, typer.Option(min=0, help="Restarts at most. Default: 4; with always: no limit.")
    ] = None,
    backoff: Annotated[
        str | None, typer.Option(help="Pause before a restart, doubled with each failure. Default: 10s.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Its folder on the pool's machine. Default: the file's folder.")
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Run it even if it needed more memory before than any device has."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Wait, and write the executed notebook to this file."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait; exit with 1 unless it succeeds.")] = False,
) -> None:
    """Run a notebook from its first cell to its last on the pool, unattended."""
    document = read_notebook(notebook)
    priority = checked_priority(priority)
    if restart not in tuple(Restart):
        raise OptionError(f"There is no restart policy {restart!r}.", f"Use one of {', '.join(Restart)}.")
    if restart == Restart.NEVER and (restarts_max or backoff is not None):
        raise OptionError(
            "--restarts-max and --backoff are for notebooks that run again.",
            "Give --restart on-failure or --restart always, too.",
        )
    if output is not None and not output.absolute().parent.is_dir():
        raise OptionError(f"There is no folder {output.absolute().parent} for the executed notebook.")
    if output is not None and output.is_dir():
        raise OptionError(f"{output} is a folder; name the file for the executed notebook.")
    _check_where(target, tolerate or [])
    backoff_s = _seconds("--backoff", backoff)
    try:
        submission = NewNotebook(
            msgspec.Raw(msgspec.json.encode(document)),
            name=name or notebook.stem,
            key=key or uuid.uuid4().hex,
            folder=_folder(notebook, folder),
            priority=priority,
            after=_after(after or []),
            after_count=after_count,
            after_timeout_s=_seconds("--after-timeout", after_timeout),
            parameters=_parameters(document, parameter or []),
            anyway=anyway,
            target=target,
            tolerates=tuple(tolerate or ()),
            deadline_s=_seconds("--deadline", deadline),
            timeout_s=_seconds("--timeout", timeout),
            restart=RestartRules(
                Restart(restart), restarts_max, BACKOFF_S if backoff_s is None else backoff_s
            ),
        )
    except ValueError as error:
        raise OptionError(str(error)) from None
    ask = PersistentClient()
    found, new = ask(lambda client: client.submit_notebook(submission))
    job = found.job
    how = f"Submitted {notebook.name} as {job}." if new else f"{job} was submitted before with this key."
    said = sys.stdout
    if not sys.stdout.isatty():  # a script, which wants the id
        print(job)
        said = sys.stderr
    print(f"{how} {found.reason}", file=said)
    if wait or output is not None:
        _wait(ask, job, output)
    else:
        print(f"See: djinn-lab why {job}; its result: djinn-lab notebooks result {job} -o FILE", file=said)


def read_notebook(path: Path) -> dict[str, object]:
    """The notebook in today's format. Raises UserError for a file that is none, or that cannot run here."""
    from djinn_lab.protocol.notebook_format import nbformat

    if not path.is_file():
        raise UserError(f"There is no notebook {path}.", "Give the path of an .ipynb file.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old notebooks lack ids of cells, which are added here
            found = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
            _, found = nbformat.validator.normalize(found)
            nbformat.validate(found)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, UnicodeDecodeError) as error:
        what = str(error).strip().splitlines()[0] if str(error).strip() else "it cannot be read"
        raise UserError(
            f"{path} is not a notebook: {what}", "Open it in Jupyter and save it again."
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} is JSON, but not a notebook ({error}).", "Open it in Jupyter and save it again."
        ) from None
    if not any(cell.cell_type == "code" and cell.source.strip() for cell in found.cells):
        raise UserError(f"{path} has no code cells, so there is nothing to run.")
    language = found.metadata.get("language_info", {}).get("name") or found.metadata.get(
        "kernelspec", {}
    ).get("language")
    if language and language.lower() != "python":
        raise UserError(
            f"{path} is for a kernel of the language {language}; the pool runs Python notebooks.",
            "Change its kernel to a Python one.",
        )
    for cell in found.cells:
        if cell.cell_type == "code":  # they are of another run
            cell.outputs, cell.execution_count = [], None
    document: dict[str, object] = json.loads(nbformat.writes(found, version=4))  # type: ignore[no-untyped-call]
    return document


def _wait(ask: PersistentClient, job: str, output: Path | None) -> None:
    """Print a notebook's progress until it is over; exit with an error unless it succeeded."""
    last = ""
    try:
        while True:
            found = ask(lambda client: client.notebook(job))
            runs = found.state == "RUNNING"
            line = f"Cell {found.cell} of {found.cells}." if runs else found.reason
            if line != last and (found.cell or not runs):
                print_line(line)
                last = line
            if found.state in OVER:
                break
            time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        print_line(f"{job} continues. Cancel it with: djinn-lab cancel {job}")
        raise
    if output is not None and found.attempts:
        write_executed(output, ask(lambda client: client.notebook_result(job)))
        print_line(f"The executed notebook is {output}.")
    if found.state != "DONE":
        raise typer.Exit(1)


class PersistentClient:
    """Tries again while the connection breaks or the pool is started again, perhaps at another address. Of a
    submission, the key makes sure that it is not accepted twice."""

    def __init__(self) -> None:
        self._client = self._find()

    def __call__(self, call: Callable[[PoolClient], Answer]) -> Answer:
        give_up_at_s = time.monotonic() + PERSIST_S
        while True:
            try:
                return call(self._client)
            except (PoolLost, PoolNotFound):
                if time.monotonic() > give_up_at_s:
                    raise
            time.sleep(RETRY_AFTER_S)
            with contextlib.suppress(PoolNotFound):
                self._client = self._find()

    def _find(self) -> PoolClient:
        from djinn_lab.client.rest import PoolClient

        return PoolClient.find()


def _folder(notebook: Path, given: Path | None) -> str:
    """The file's own folder is meant only if the pool's machine is this one."""
    if given is not None:
        return str(given.absolute())
    return str(notebook.absolute().parent)


def _after(given: list[str]) -> tuple[str, ...]:
    try:
        return separated(given)
    except ValueError as error:
        raise OptionError(f"--after: {error}.") from None


def _check_where(target: str | None, tolerates: list[str]) -> None:
    """Raise OptionError for a target or taints that no device could have."""
    problem = Terms(target=target, tolerates=tuple(tolerates)).problem()
    if problem is not None:
        raise OptionError(f"--target, --tolerate: {problem}.", "See: djinn-lab device")


def _parameters(document: dict[str, object], given: list[str]) -> dict[str, object]:
    """Values of the kinds that the notebook's own defaults have. Raises OptionError."""
    if not given:
        return {}
    known = declared(document)
    found = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise OptionError(f"--parameter {one}: it has no =.", "Write it as NAME=VALUE.")
        found[name.strip()] = from_text(text, name.strip(), known)
    problem = problem_with(found, known)
    if problem is not None:
        raise OptionError(f"--parameter: {problem}.")
    if known is None:
        print_line("No cell is tagged parameters, so the values are set before the first cell.")
    return found


def _seconds(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise OptionError(f"{option}: {error}.") from None
