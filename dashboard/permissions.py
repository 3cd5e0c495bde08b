"""Which visitors may change the pool from pages, and who can allow them what they may not.

The pool decides by the visitor's token, whatever pages offer. One thing only pages can know: whether the
browser has proven its user at all. Where a pool has one user the dashboard lets each program of its machine
in, and such a browser manages nothing.
"""

from __future__ import annotations

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.pool.authentication import Role

LOG_IN = (
    "Changes need a login, because every program of this machine reaches this page: open the address that "
    "djinn-lab dashboard prints, or %djinn dashboard."
)


def role_of(snapshot: Snapshot) -> Role | None:
    """Return the visitor's role, None before the pool has named it."""
    name = "" if snapshot.status is None else snapshot.status.role.upper()
    return Role[name] if name in Role.__members__ else None


def refusal(board: Board, snapshot: Snapshot, needed: Role, what: str) -> str:
    """Say in one sentence why the visitor may not do ``what``, and who can allow it; empty where the visitor
    may."""
    role = role_of(snapshot)
    if role is None:
        return "The pool has not said yet which role you have."
    if role < needed:
        return (
            f"You are {snapshot.user} ({role.label}); {what} needs the role {needed.label}. "
            f"Ask {_administrator(board)}."
        )
    return "" if board.logged_in else LOG_IN


def may(board: Board, snapshot: Snapshot, needed: Role) -> bool:
    """Return whether to offer the visitor what needs this role."""
    return not refusal(board, snapshot, needed, "this")


def _administrator(board: Board) -> str:
    """Name an administrator: the user who runs the dashboard, where that is one."""
    keeper = board.keeper()
    if role_of(keeper) is Role.ADMIN and keeper.user:
        return f"{keeper.user}, who runs this dashboard and is an admin"
    return "an admin of the pool, such as the user who started it"
