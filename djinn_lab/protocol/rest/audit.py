"""``/v1/audit``: which user did what, in a chain of hashes.

Each row's hash is the digest of the hash before it and of the row. So a row that was altered, removed or put
in between no longer fits its neighbours, for each reader. What the chain cannot show by itself is
that all of it was written anew, or that its end was cut off together with the stored head: for that, compare
with a head that was noted elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

HASH_BYTES = 32
ROOT = "0" * (2 * HASH_BYTES)
"""Stands for the hash before the first row."""


class AuditRow(msgspec.Struct, frozen=True):
    """``at``: seconds since the epoch. ``status``: as of an HTTP answer, so below 400 if it was done.
    ``user``: empty for the pool itself and for a client without a valid token. ``body``: the beginning of
    what was sent, or details. ``row``: counted from 1. ``hash``: of this row and the hash before it."""

    at: float
    pool: str
    user: str
    action: str
    status: int
    body: str
    row: int = 0
    hash: str = ""


class ChainHead(msgspec.Struct, frozen=True):
    """Name the last row, and where the chain begins. ``root``: the hash before the oldest row that is
    kept."""

    row: int = 0
    hash: str = ROOT
    root: str = ROOT


class BrokenChain(msgspec.Struct, frozen=True):
    """``row``: the first that does not fit."""

    row: int
    reason: str


def link(previous: str, row: AuditRow) -> str:
    """Return the hash of a row behind the hash ``previous``."""
    content = (previous, row.row, row.at, row.pool, row.user, row.action, row.status, row.body)
    return blake2b(msgspec.json.encode(content), digest_size=HASH_BYTES).hexdigest()


def first_break(
    rows: Iterable[AuditRow], head: ChainHead, noted: tuple[int, str] | None = None
) -> BrokenChain | None:
    """Find the first row that does not fit, None for a whole chain. ``rows``: all kept ones up to ``head``,
    oldest first. ``noted``: number and hash of a row, as they were noted earlier."""
    previous, number, first = head.root, None, None
    for row in rows:
        first = first or row.row
        if number is not None and row.row != number + 1:
            return BrokenChain(number + 1, _missing(number + 1, row.row - 1))
        if link(previous, row) != row.hash:
            return BrokenChain(row.row, "it was altered, or a row before it was altered or removed")
        if noted is not None and noted[0] == row.row and noted[1] != row.hash:
            return BrokenChain(row.row, "its hash is not the one that was noted: the chain was written anew")
        previous, number = row.hash, row.row
    last = number or 0
    if (last, previous) != (head.row, head.hash):
        return BrokenChain(last + 1, _missing(last + 1, head.row))
    if noted is not None and noted[0] > last:
        return BrokenChain(last + 1, f"{_missing(last + 1, noted[0])}, which was noted as the last one")
    if noted is not None and first is not None and noted[0] < first:
        return BrokenChain(noted[0], f"it is no longer kept: the oldest row is {first}; note a newer head")
    return None


def _missing(first: int, last: int) -> str:
    """Say which rows are missing, of ``first``."""
    if last < first:
        return f"the head of the chain is row {last}, which is not the last one"
    return "it is missing" if first == last else f"it is missing, with all up to row {last}"
