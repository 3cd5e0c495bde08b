"""``djinn-lab audit``: what was done, refused and failed on the pool, and whether the record is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from djinn_lab.cli.options import AsJson, read_moment, shown_moment
from djinn_lab.cli.output import print_found, print_line
from djinn_lab.errors import OptionError, UserError

if TYPE_CHECKING:
    from djinn_lab.protocol.rest.audit import AuditRow, ChainHead

PAGE_ROWS = 1000


def build_group() -> typer.Typer:
    help_text = "Changes on the pool with their users, refusals and failures (for admins)."
    group = typer.Typer(help=help_text, invoke_without_command=True)
    group.callback(help=help_text)(_show_when_alone)
    group.command("list")(show_audit)
    group.command("verify")(verify_audit)
    return group


def _show_when_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show_audit()


def show_audit(
    user: Annotated[str | None, typer.Option(help="Only what this user did.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only actions with this text, such as /v1/users.")
    ] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only refusals and faults.")] = False,
    since: Annotated[str | None, typer.Option(help="Since when: 14:00, a date and time.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many of the newest.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the newest rows, the newest last."""
    from djinn_lab.client.rest import PoolClient

    since_s = None if since is None else _past(since)
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
    from djinn_lab.protocol.rest.audit import first_break

    expected = None if noted is None else _noted(noted)
    head, rows = _from_pool() if database is None else _from_database(database)
    count = 0

    def counted() -> Iterator[AuditRow]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    broken = first_break(counted(), head, expected)
    if broken is not None:
        raise UserError(
            f"The audit is broken at row {broken.row}: {broken.reason}.",
            "Something other than the pool changed the database. Keep a copy before you continue.",
        )
    print_line(f"{count:,} rows fit one another. Note the head elsewhere: --head {head.row}:{head.hash}")


def _from_pool() -> tuple[ChainHead, Iterable[AuditRow]]:
    from djinn_lab.client.rest import PoolClient

    client = PoolClient.find()
    head = client.audit_head()
    return head, _pages(lambda after: client.audit(PAGE_ROWS, after=after), head)


def _from_database(database: str) -> tuple[ChainHead, Iterable[AuditRow]]:
    import sqlalchemy as sa

    from djinn_lab.cli.replay import database_url
    from djinn_lab.pool.database.audit import read_audit, read_head
    from djinn_lab.pool.database.engine import make_engine, unusable

    url = database_url(database)
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            head = read_head(connection)
            rows = list(_pages(lambda after: read_audit(connection, PAGE_ROWS, after=after), head))
    except sa.exc.SQLAlchemyError as error:
        raise unusable(url, error) from None
    finally:
        engine.dispose()
    return head, rows


def _pages(read: Callable[[int], list[AuditRow]], head: ChainHead) -> Iterator[AuditRow]:
    """Yield all rows up to the head, which later ones may follow by now."""
    last = 0
    while page := [row for row in read(last) if row.row <= head.row]:
        yield from page
        last = page[-1].row


def _noted(text: str) -> tuple[int, str]:
    row, _, digest = text.partition(":")
    if not row.isdecimal() or len(digest) != 64:
        raise OptionError(
            f"--head: {text!r} is not a head.", "Give it as `djinn-lab audit verify` printed it."
        )
    return int(row), digest


def _past(text: str) -> float:
    """A time of day is the last one before now."""
    import time

    now_s = time.time()
    found = read_moment("--since", text, now_s)
    return found if found <= now_s else found - 86_400


def _row(row: AuditRow) -> tuple[str, ...]:
    return str(row.row), shown_moment(row.at), row.user or "-", row.action, str(row.status), row.body
