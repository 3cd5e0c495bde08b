"""``/v1/users``: users and their tokens."""

from __future__ import annotations

import msgspec


class NewUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """Add a user. ``account``: the account above the user's own, such as ``"vision/train"``."""

    name: str
    role: str = "user"
    account: str | None = None


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
