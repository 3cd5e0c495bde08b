"""``djinn-lab audit``: what was done, refused and failed on the pool, and whether the record is whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli.options import AsJson
from djinn_lab.cli.output import print_found, print_line
from djinn_lab.client.moments import read_past_moment, shown_moment

if TYPE_CHECKING:
    from djinn_lab.protocol.rest.audit import AuditRow, ChainHead


User = Annotated[str | None, typer.Option(help="Only what this user did.")]
Action = Annotated[str | None, typer.Option(help="Only actions with this text, such as /v1/users.")]
OnlyRefused = Annotated[bool, typer.Option("--refused", help="Only refusals and faults.")]
Since = Annotated[str | None, typer.Option(help="Since when: 14:00, a date and time.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="So many of the newest.")]
LIMIT = 50


def build_group() -> typer.Typer:
    help_text = "Changes on the pool with their users, refusals and failures (for admins)."
    group = typer.Typer(help=help_text, invoke_without_command=True)
    group.callback(help=help_text)(_show_when_alone)
    group.command("list")(show_audit)
    group.command("verify")(verify_audit)
    return group


def _show_when_alone(
    context: typer.Context,
    user: User = None,
    action: Action = None,
    refused: OnlyRefused = False,
    since: Since = None,
    limit: Limit = LIMIT,
    as_json: AsJson = False,
) -> None:
    """Take the options of ``list``, which needs no name. Raises click's UsageError for them before another
    command."""
    if context.invoked_subcommand is None:
        show_audit(user, action, refused, since, limit, as_json)
    elif (user, action, refused, since, limit, as_json) != (None, None, False, None, LIMIT, False):
        context.fail(f"Options of the list stand before {context.invoked_subcommand!r}; give them after it.")


def show_audit(
    user: User = None,
    action: Action = None,
    refused: OnlyRefused = False,
    since: Since = None,
    limit: Limit = LIMIT,
    as_json: AsJson = False,
) -> None:
    """List the newest rows, the newest last."""
    from djinn_lab.client.rest import PoolClient

    since_s = None if since is None else read_past_moment("--since", since, time.time())
    found = PoolClient.find().audit(limit, user=user, action=action, refused=refused, since=since_s)
    headings = ("row", "when", "user", "action", "status", "details")
    print_found(found[::-1], as_json, "Audit", headings, _row, "Nothing like that was done.")


def verify_audit(
    noted: Annotated[
        str | None, typer.Option("--head", help="A head that was noted earlier, as ROW:HASH.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="Read this pool.sqlite3, or URL, in place of asking the pool.")
    ] = None,
) -> None:
    """Check that no row was altered, removed or put in between, and print the head to note elsewhere."""
    from djinn_lab.client.audit_chain import checked_chain, read_head

    expected = None if noted is None else read_head("--head", noted)
    found, rows = _from_pool() if database is None else _from_database(database)
    count, head = checked_chain(found, rows, expected)
    print_line(f"{count:,} rows fit one another. Note the head elsewhere: --head {head}")


def _from_pool() -> tuple[ChainHead, Iterator[AuditRow]]:
    from djinn_lab.client.audit_chain import rows_of_pool
    from djinn_lab.client.rest import PoolClient

    return rows_of_pool(PoolClient.find())


def _from_database(database: str) -> tuple[ChainHead, Iterator[AuditRow]]:
    import sqlalchemy as sa

    from djinn_lab.cli.replay import database_url
    from djinn_lab.client.audit_chain import PAGE_ROWS, pages_to
    from djinn_lab.pool.database.audit import read_audit, read_head
    from djinn_lab.pool.database.engine import make_engine, unusable

    url = database_url(database)
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            head = read_head(connection)
            rows = list(pages_to(head, lambda after: read_audit(connection, PAGE_ROWS, after=after)))
    except sa.exc.SQLAlchemyError as error:
        raise unusable(url, error) from None
    finally:
        engine.dispose()
    return head, iter(rows)


def _row(row: AuditRow) -> tuple[str, ...]:
    return str(row.row), shown_moment(row.at), row.user or "-", row.action, str(row.status), row.body
