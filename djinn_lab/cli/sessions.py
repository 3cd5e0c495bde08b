"""``djinn-lab sessions`` and ``djinn-lab close``: sessions that hold memory on the pool."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli.options import AsJson
from djinn_lab.cli.output import print_found, print_line
from djinn_lab.errors import OptionError
from djinn_lab.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from djinn_lab.protocol.rest.sessions import SessionView


def show_sessions(as_json: AsJson = False) -> None:
    """List sessions: one per notebook or program, with the memory it holds. For those whose client is away
    or has vanished, since when, and when they are closed."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    found = client.sessions()
    now_s = client.status().now if found else 0.0
    headings = ("session", "user", "name", "device", "state", "memory", "cells", "client gone", "ends in")
    none = "No sessions. One opens with a notebook's first %%djinn cell."
    print_found(found, as_json, "Sessions", headings, partial(_row, now_s=now_s), none)


def close_session(
    session: Annotated[str, typer.Argument(help="The session's id, or its unique beginning.")],
) -> None:
    """Close a session and free its memory. A notebook that still uses it loses what was only on the pool."""
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    matching = [row.session for row in client.sessions() if row.session.startswith(session)]
    if len(matching) != 1:
        raise OptionError(
            f"{session!r} matches {len(matching)} sessions.", "See djinn-lab sessions for the ids."
        )
    client.close_session(matching[0])
    print_line(f"Session {matching[0]} is closed.")


def _row(session: SessionView, now_s: float) -> tuple[str, ...]:
    gone = ends = ""
    if session.ends_at is not None and session.last_seen is not None:
        gone = format_seconds(max(0.0, now_s - session.last_seen))
        ends = format_seconds(max(0.0, session.ends_at - now_s))
    return (
        session.session[:8],
        session.user,
        session.name,
        session.device or "",
        session.state,
        format_bytes(session.used_bytes),
        str(session.jobs),
        gone,
        ends,
    )
