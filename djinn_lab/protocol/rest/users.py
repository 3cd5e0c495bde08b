"""``/v1/users``: users and their tokens."""

from __future__ import annotations

import msgspec


class UserView(msgspec.Struct, frozen=True):
    """Show a user. ``account``: the leaf of the share tree that pays for the user's cells."""

    name: str
    role: str
    account: str


class UserToken(msgspec.Struct, frozen=True):
    """Give a new user's token, which is shown this once."""

    name: str
    role: str
    token: str
