"""The share tree in the database: its targets, and the usage ledger that it is built from again."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from djinn_lab.jobs import ChargeAccount
from djinn_lab.jobs.fairness import AccountState, Amounts, Limits, ShareState, ShareTree
from djinn_lab.pool.database.batch import Row, Work, WriteKind, execute
from djinn_lab.pool.database.engine import upsert
from djinn_lab.pool.database.tables import accounts, usage


def usage_row(charge: ChargeAccount) -> Row:
    return Row(WriteKind.USAGE, msgspec.structs.asdict(charge))


def write_targets(known: AccountState) -> Work:
    """Write an account's weight and limits in place of those that are stored."""
    row = {
        "account": known.account,
        "weight": known.weight,
        "limits": msgspec.json.encode(known.limits).decode(),
        "min_runtime_s": known.min_runtime_s,
    }

    def write(connection: sa.Connection) -> None:
        connection.execute(upsert(connection, accounts, "account").values(row))

    return write


def forget_targets(account: str) -> Work:
    """Give an account the weight and limits of those without any."""
    return lambda connection: execute(connection, sa.delete(accounts).where(accounts.c.account == account))


def read_shares(connection: sa.Connection) -> ShareState:
    """Targets as stored, usage summed over the ledger."""
    tree = ShareTree()
    for row in connection.execute(sa.select(usage).order_by(usage.c.id)):
        charge = f"{row.job}:{row.id}"
        tree.admit(charge, row.account, row.started_at_s, Amounts())
        seconds = row.ended_at_s - row.started_at_s
        tree.settle(charge, Amounts(seconds, row.memory_byte_s, row.transfer_bytes))
    for row in connection.execute(sa.select(accounts)):
        tree.set_weight(row.account, row.weight)
        tree.set_limits(row.account, msgspec.json.decode(row.limits, type=Limits))
        tree.set_min_runtime(row.account, row.min_runtime_s)
    return tree.state()
