"""The URL of a pool's database, as it is given and as it is shown.

SQLAlchemy is imported where a URL is read: each command imports this file, and few read one."""

from __future__ import annotations

from pathlib import Path

from djinn_lab.errors import OptionError

DATABASE_VARIABLE = "DJINN_DATABASE"
FORMS = "Use sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME."


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def checked_url(given: str) -> str:
    """Turn a database's URL into SQLAlchemy's form. Raises OptionError for a database that a pool cannot
    use."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(given)
    except (ArgumentError, ValueError):  # never repeated: there may be a password in it
        raise OptionError("The database's address is no URL.", FORMS) from None
    match url.get_backend_name():
        case "sqlite" if url.database and url.database != ":memory:" and "uri" not in url.query:
            return sqlite_url(Path(url.database).absolute())
        case "sqlite":
            raise OptionError("A pool's database outlives it, so it must be a file.", FORMS)
        case "postgresql" | "postgres":
            chosen = url.set(drivername="postgresql+psycopg")
            return chosen.render_as_string(hide_password=False)
        case other:
            raise OptionError(f"A pool cannot use a database of {other}.", FORMS)


def shown(url: str) -> str:
    """Show a URL to people, without password and options."""
    from sqlalchemy.engine import make_url

    return make_url(url).set(query={}, drivername=plain_name(url)).render_as_string(hide_password=True)


def plain_name(url: str) -> str:
    """Return the name of the database system, without its driver."""
    from sqlalchemy.engine import make_url

    return make_url(url).get_backend_name()
