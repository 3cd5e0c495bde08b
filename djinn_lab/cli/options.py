"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from djinn_lab.errors import OptionError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]


def _given(job: str) -> str:
    """Raises OptionError for an empty id, which begins every job's."""
    if not job.strip():
        raise OptionError("The job's id is empty.", "See the ids of jobs with: djinn-lab jobs")
    return job


JobId = Annotated[str, typer.Argument(help="The job's id, or its unique beginning.", callback=_given)]
Tls = Annotated[
    bool | None,
    typer.Option("--tls/--no-tls", help="Encrypt. Default: where --host is an address that others reach."),
]
TlsCertificate = Annotated[
    str | None, typer.Option(help="Certificate (PEM) to use. Default: one that is made once.")
]
TlsKey = Annotated[str | None, typer.Option(help="The certificate's key (PEM).")]


def checked_priority(text: str) -> str:
    """Return the priority as the pool writes it. Raises OptionError."""
    from djinn_lab.jobs import RANKS

    if text.upper() not in RANKS:
        raise OptionError(f"There is no priority {text!r}.", f"Use one of {', '.join(RANKS)}.")
    return text.upper()


def listing_group(help_text: str, show: Callable[[bool], None]) -> typer.Typer:
    """``djinn-lab GROUP`` does what ``djinn-lab GROUP list`` does: ``show``, which takes ``--json``."""
    group = typer.Typer(help=help_text, invoke_without_command=True)

    def show_when_alone(context: typer.Context, as_json: AsJson = False) -> None:
        if context.invoked_subcommand is None:
            show(as_json)
        elif as_json:
            raise OptionError(
                f"--json before {context.invoked_subcommand} has no effect.",
                f"Write it behind: {context.command_path} {context.invoked_subcommand} --json",
            )

    group.callback(help=help_text)(show_when_alone)
    group.command("list")(show)
    return group
