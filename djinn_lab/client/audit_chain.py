"""All rows of a pool's audit, page by page, for the check of its chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import OptionError, UserError
from djinn_lab.protocol.rest.audit import AuditRow, ChainHead, first_break

PAGE_ROWS = 1000
HASH_CHARS = 64


def pages_to(head: ChainHead, read: Callable[[int], list[AuditRow]]) -> Iterator[AuditRow]:
    """Yield all rows up to the head, which later ones may follow by now. ``read``: rows behind a number."""
    last = 0
    while page := [row for row in read(last) if row.row <= head.row]:
        yield from page
        last = page[-1].row


def rows_of_pool(client: PoolClient) -> tuple[ChainHead, Iterator[AuditRow]]:
    """Return the head of a pool's chain, and the rows up to it."""
    head = client.audit_head()
    return head, pages_to(head, lambda after: client.audit(PAGE_ROWS, after=after))


def checked_chain(
    head: ChainHead, rows: Iterator[AuditRow], noted: tuple[int, str] | None = None
) -> tuple[int, str]:
    """Return how many rows fit one another, and the head to note. ``noted``: one that was noted earlier.
    Raises UserError at the first row that does not fit."""
    count = 0

    def counted() -> Iterator[AuditRow]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    broken = first_break(counted(), head, noted)
    if broken is not None:
        raise UserError(
            f"The audit is broken at row {broken.row}: {broken.reason}.",
            "Something other than the pool changed the database. Keep a copy before you continue.",
        )
    return count, f"{head.row}:{head.hash}"


def read_head(option: str, text: str) -> tuple[int, str]:
    """Read a noted head, ``ROW:HASH``. Raises OptionError that names the option."""
    row, _, digest = text.strip().partition(":")
    if not row.isdecimal() or len(digest) != HASH_CHARS:
        raise OptionError(
            f"{option}: {text!r} is not a head.", "Give it as `djinn-lab audit verify` printed it."
        )
    return int(row), digest
