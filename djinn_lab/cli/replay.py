"""``djinn-lab replay DATABASE``: does this version decide as the pool did that wrote the journal?"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from djinn_lab.cli.output import print_line
from djinn_lab.errors import UserError
from djinn_lab.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from djinn_lab.journal import Record

SHOWN_EVERY = 500


def replay_journal(
    database: Annotated[str, typer.Argument(help="A pool's pool.sqlite3, or the URL of its database.")],
    pool: Annotated[
        str | None, typer.Option(help="The id of the pool's run; the newest if not given.")
    ] = None,
) -> None:
    """Feed a pool's journal to a fresh engine and name the first event at which it decides differently."""
    import sqlalchemy as sa

    from djinn_lab.pool.database.engine import make_engine, unusable
    from djinn_lab.pool.database.history import newest_pool, read_journal

    url = database_url(database)
    try:
        engine = make_engine(url)
        with engine.connect() as connection:
            name = pool or newest_pool(connection)
            if name is None:
                raise UserError("The journal is empty.", "Run a cell on the pool, and try again.")
            _replay(name, read_journal(connection, name))
        engine.dispose()
    except sa.exc.SQLAlchemyError as error:
        raise unusable(url, error) from None


def database_url(database: str) -> str:
    """Return the URL of a database that is given as a file or a URL. Raises UserError when there is no such
    file."""
    from pathlib import Path

    from djinn_lab.pool.database.address import checked_url, sqlite_url

    if "://" in database:
        return checked_url(database)
    if not Path(database).is_file():
        raise UserError(
            f"There is no file {database}.",
            "A pool's database is pool.sqlite3 in DJINN_RUNTIME_DIR, or in ~/.local/share/djinn-lab.",
        )
    return sqlite_url(Path(database).absolute())


def _replay(pool: str, records: Iterator[Record]) -> None:
    from djinn_lab.engine import Engine, PoolOpened
    from djinn_lab.journal import CORE, UNKNOWN, ReplayDiffers, replay, this_version, version_of

    count, began_s, written_by = 0, perf_counter(), UNKNOWN

    def checked() -> Iterator[Record]:
        nonlocal written_by
        for number, record in enumerate(records):
            if record.core != CORE:
                raise _of_another_version(pool, UNKNOWN, f"event {record.seq} is of {record.core}")
            if number == 0 and record.event != PoolOpened.__name__:
                raise UserError(
                    f"The journal of pool {pool} begins with event {record.seq}: earlier events are gone.",
                    "Replay a journal from the pool's start: the newest 200,000 events are kept.",
                )
            if number == 0:
                written_by = version_of(record) or UNKNOWN
            yield record

    engine = Engine()
    try:
        with Console(stderr=True).status("Replaying") as status:
            for _ in replay(checked(), engine):
                count += 1
                if count % SHOWN_EVERY == 0:
                    status.update(f"Replayed {count:,} events")
    except ReplayDiffers as difference:
        if written_by != this_version():
            raise _of_another_version(pool, written_by, f"{difference}") from None
        raise UserError(
            f"{difference}", f"The {count:,} events before it lead to the same decisions."
        ) from None
    if not count:
        raise UserError(f"The journal has no pool {pool}.", "Leave --pool out for the newest.")
    engine.validate()
    seconds = format_seconds(perf_counter() - began_s)
    print_line(f"{count:,} events of pool {pool} lead to the same commands as they did live ({seconds}).")


def _of_another_version(pool: str, written_by: str, difference: str) -> UserError:
    from djinn_lab.journal import this_version

    return UserError(
        f"The journal of pool {pool} was written by djinn-lab {written_by}, and only that version is sure to "
        f"replay it: this is {this_version()}, which decides otherwise.",
        f"Replay it with the version that wrote it. What differs first: {difference}",
    )
