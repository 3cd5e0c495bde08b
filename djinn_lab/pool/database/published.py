"""Data that jobs publish by name: which account may use it, and its rows in the database."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from djinn_lab.jobs.conditions import Need, parse, same_project
from djinn_lab.pool.database.batch import Work
from djinn_lab.pool.database.engine import upsert
from djinn_lab.pool.database.tables import published
from djinn_lab.protocol.rest.announcements import Published

OF_USER_MAX = 10_000


class PublishedData:
    """Keep published data by name."""

    def __init__(self) -> None:
        self._named: dict[str, dict[str, Published]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._named.values()))

    def of(self, user: str, name: str) -> Published | None:
        """Find data that this user published."""
        return self._named.get(name, {}).get(user)

    def count(self, user: str) -> int:
        """Count the names that this user has published."""
        return sum(user in by_user for by_user in self._named.values())

    def is_there(self, account: str, name: str) -> bool:
        """Return whether data of this name is published for this account."""
        return any(same_project(account, one.account) for one in self._named.get(name, {}).values())

    def visible(self, account: str) -> list[Published]:
        """List the data that this account may use, newest first."""
        found = [one for by_user in self._named.values() for one in by_user.values()]
        return sorted((one for one in found if same_project(account, one.account)), key=lambda one: -one.at)

    def add(self, one: Published) -> None:
        self._named.setdefault(one.name, {})[one.user] = one

    def remove(self, one: Published) -> None:
        by_user = self._named[one.name]
        del by_user[one.user]
        if not by_user:
            del self._named[one.name]

    def met(self, account: str, after: Iterable[str]) -> tuple[str, ...]:
        """List the conditions whose data is published."""
        wanted = ((text, parse(text)) for text in after)
        return tuple(t for t, one in wanted if one.need is Need.DATA and self.is_there(account, one.name))


def read_published(connection: sa.Connection) -> list[Published]:
    rows = connection.execute(sa.select(published))
    return [Published(row.user, row.account, row.name, row.job, row.at) for row in rows]


def write_published(one: Published) -> Work:
    row = msgspec.structs.asdict(one)

    def write(connection: sa.Connection) -> None:
        connection.execute(upsert(connection, published, "user", "name").values(row))

    return write


def forget_published(one: Published) -> Work:
    same = (published.c.user == one.user) & (published.c.name == one.name)

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.delete(published).where(same))

    return write
