"""Accounts as the pool answers them, made by hand."""

from __future__ import annotations

from djinn_lab.jobs.fairness import AccountView, Amounts, Limits


def account(
    name: str,
    *,
    share: float = 0.0,
    dominant: float = 0.0,
    rank: int | None = None,
    device_s: float = 0.0,
    limits: Limits | None = None,
    overcommitted: str = "",
) -> AccountView:
    """``rank`` None: an inner account, to which no cells are charged."""
    used = Amounts(device_s)
    return AccountView(
        name, 1.0, share, Amounts(), dominant, 0.0, rank, used, limits or Limits(), overcommitted
    )
