"""``djinn-lab notebooks``: batch notebooks, and what came of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli.options import AsJson
from djinn_lab.cli.output import print_found, print_line
from djinn_lab.errors import OptionError
from djinn_lab.jobs.batch import NotebookState
from djinn_lab.units import format_seconds

if TYPE_CHECKING:
    from djinn_lab.protocol.rest.notebooks import NotebookView

GIVEN_CHARACTERS_MAX = 60
State = Annotated[str | None, typer.Option(help="Only notebooks in this state, e.g. RUNNING.")]
OfUser = Annotated[str | None, typer.Option("--user", help="Only this user's notebooks.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many to list, newest first.")]


def build_group() -> typer.Typer:
    group = typer.Typer(help="List batch notebooks and fetch their results.", invoke_without_command=True)
    group.callback()(_show_when_alone)
    group.command("list")(show_notebooks)
    group.command("result")(fetch_result)
    return group


def _show_when_alone(
    context: typer.Context,
    state: State = None,
    user: OfUser = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List batch notebooks and fetch their results."""
    if context.invoked_subcommand is None:
        show_notebooks(state, user, limit, as_json)


def show_notebooks(
    state: State = None, user: OfUser = None, limit: Limit = 20, as_json: AsJson = False
) -> None:
    """List batch notebooks, newest first."""
    from djinn_lab.client.rest import PoolClient

    if state is not None and state.upper() not in tuple(NotebookState):
        raise OptionError(f"There is no state {state!r}.", f"Use one of {', '.join(NotebookState)}.")
    found = PoolClient.find().notebooks(None if state is None else state.upper(), user, limit)
    headings = ("job", "user", "notebook", "state", "cells", "ran", "why")
    none = "No batch notebooks. Submit one with: djinn-lab submit NOTEBOOK"
    print_found(found, as_json, "Notebooks", headings, _row, none)


def fetch_result(
    job: Annotated[str, typer.Argument(help="The notebook's id, or its unique beginning.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. Default: JOB.ipynb in this folder."),
    ] = None,
) -> None:
    """Write the executed notebook to a file; while it runs, with what it has done so far."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    found = client.notebook(job)
    path = output or Path(f"{found.job}.ipynb")
    write_executed(path, client.notebook_result(found.job))
    print_line(f"{path}: {found.name}, {found.state}. {found.reason}")


def write_executed(path: Path, notebook: bytes) -> None:
    """Raises OptionError."""
    try:
        path.write_bytes(notebook)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}.") from None


def _name(one: NotebookView) -> str:
    """Return the notebook's name, with its parameters."""
    given = ", ".join(f"{name}={value}" for name, value in one.parameters.items())
    if len(given) > GIVEN_CHARACTERS_MAX:
        given = f"{given[: GIVEN_CHARACTERS_MAX - 3]}..."
    return f"{one.name} ({given})" if given else one.name


def _row(one: NotebookView) -> tuple[str, ...]:
    began, ended = one.started_at, one.finished_at
    if ended is None and one.state == NotebookState.RUNNING:
        ended = time.time()
    return (
        one.job,
        one.user,
        _name(one),
        one.state,
        f"{one.cell}/{one.cells}" if one.cells else "",
        "" if began is None or ended is None else format_seconds(max(0.0, ended - began)),
        one.reason,
    )
