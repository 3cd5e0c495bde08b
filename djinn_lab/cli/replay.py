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
    """Feed a pool's journal to a fresh engine and name the first event at which it decides otherwise."""
    import sqlalchemy as sa

    from djinn_lab.pool.database.engine import make_engine, unusable
    from djinn_lab.pool.database.history import newest_pool, read_journal

    url = _url(database)
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


def _url(database: str) -> str:
    from pathlib import Path

    from djinn_lab.pool.database.engine import checked_url, sqlite_url

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
    from djinn_lab.journal import CORE, ReplayDiffers, replay

    count, began_s = 0, perf_counter()

    def checked() -> Iterator[Record]:
        for number, record in enumerate(records):
            if record.core != CORE:
                raise UserError(
                    f"Event {record.seq} of pool {pool} was written by an older version.",
                    "Replay it with the version that wrote it.",
                )
            if number == 0 and record.event != PoolOpened.__name__:
                raise UserError(
                    f"The journal of pool {pool} begins with event {record.seq}: what was before is gone.",
                    "Replay a journal from the pool's start: the newest 200,000 events are kept.",
                )
            yield record

    engine = Engine()
    try:
        with Console(stderr=True).status("Replaying") as status:
            for _ in replay(checked(), engine):
                count += 1
                if count % SHOWN_EVERY == 0:
                    status.update(f"Replayed {count:,} events")
    except ReplayDiffers as difference:
        raise UserError(
            f"{difference}", f"The {count:,} events before it lead to what they led to."
        ) from None
    if not count:
        raise UserError(f"The journal has no pool {pool}.", "Leave --pool out for the newest.")
    engine.validate()
    seconds = format_seconds(perf_counter() - began_s)
    print_line(f"{count:,} events of pool {pool} lead to the same commands as they did live ({seconds}).")
