"""Options that several commands take, and moments as people write them: ``14:00``, ``2026-11-23 14:00``,
``+2h``, ``now``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated

import typer

from djinn_lab.errors import OptionError
from djinn_lab.units import parse_seconds

_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
JobId = Annotated[str, typer.Argument(help="The job's id, or its unique beginning.")]
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

    group.callback(help=help_text)(show_when_alone)
    group.command("list")(show)
    return group


def read_moment(option: str, text: str, now_s: float) -> float:
    """Seconds since the epoch. A time of day is the next one after ``now_s`` by this machine's clock, ``+2h``
    counts from ``now_s``, a date without a zone is of this machine's. Raises OptionError that names the
    ``option``."""
    cleaned = text.strip()
    try:
        if cleaned == "now":
            return now_s
        if cleaned.startswith("+"):
            return now_s + parse_seconds(cleaned[1:])
        if _CLOCK.fullmatch(cleaned):
            return _next(cleaned, now_s)
        return datetime.fromisoformat(cleaned).timestamp()
    except (ValueError, OverflowError, OSError):
        raise OptionError(
            f"{option}: {text!r} is not a time.",
            "Write a time of day (14:00), a date (2026-11-23 14:00), a time from now (+2h) or now.",
        ) from None


def shown_moment(at_s: float) -> str:
    """``2026-11-23 14:00:00``, by this machine's clock."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def _next(clock: str, now_s: float) -> float:
    now = datetime.fromtimestamp(now_s)
    hours, minutes, seconds = (int(part) for part in f"{clock}:0".split(":")[:3])
    found = now.replace(hour=hours, minute=minutes, second=seconds, microsecond=0)
    return (found if found.timestamp() > now_s else found + timedelta(days=1)).timestamp()
