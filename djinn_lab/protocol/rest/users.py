"""``/v1/users``: users and their tokens."""

from __future__ import annotations

import msgspec


class NewUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """Add a user. ``account``: the account above the user's own, such as ``"vision/train"``. ``days``: how
    long the token lives; None: the default, 0: for ever."""

    name: str
    role: str = "user"
    account: str | None = None
    days: float | None = None


class UserView(msgspec.Struct, frozen=True):
    """Show a user. ``account``: the leaf of the share tree that pays for the user's cells."""

    name: str
    role: str
    account: str


class RoleChoice(msgspec.Struct, frozen=True):
    """Give a user another role."""

    role: str


class UserToken(msgspec.Struct, frozen=True):
    """Give a new user's token, which is shown this once. ``expires_at``: seconds since the epoch, None for
    never."""

    name: str
    role: str
    token: str
    expires_at: float | None = None


class NewToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """Make a token. ``user``: whose; empty for the asking user. ``role``: at most the user's, which it is
    where this is empty. ``days``: as of :class:`NewUser`. ``scopes``: what it is limited to, empty for no
    other limit than that of the token that makes it."""

    name: str
    user: str = ""
    role: str = ""
    days: float | None = None
    scopes: tuple[str, ...] = ()


class TokenRotation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Make a new secret for a token. ``overlap_s``: the old one is valid so long. ``days``: until the new
    one ends, 0 for never; None: as long as the old one was made for."""

    overlap_s: float = 86_400.0
    days: float | None = None


class TokenView(msgspec.Struct, frozen=True):
    """Show a token. ``in_use``: the request that asked came with it. ``scopes``: what it is limited to, empty
    for all that its role may."""

    user: str
    name: str
    role: str
    created_at: float
    expires_at: float | None = None
    in_use: bool = False
    scopes: tuple[str, ...] = ()


class TokenMade(msgspec.Struct, frozen=True):
    """Give a token's new secret, which is shown this once."""

    token: TokenView
    secret: str
