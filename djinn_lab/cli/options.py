"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from djinn_lab.errors import OptionError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
JobId = Annotated[str, typer.Argument(help="The job's id, or a unique start of it.")]


def checked_priority(text: str) -> str:
    """As the pool writes it. Raises OptionError."""
    from djinn_lab.jobs import RANKS

    if text.upper() not in RANKS:
        raise OptionError(f"There is no priority {text!r}.", f"Use one of {', '.join(RANKS)}.")
    return text.upper()
