"""What an identity provider is: it says to which user a bearer token belongs that the pool did not make."""

from __future__ import annotations

from typing import Protocol, cast
from urllib.parse import quote

import msgspec

from djinn_lab.plugins import load_plugin
from djinn_lab.pool.authentication import Role
from djinn_lab.pool.scopes import TokenScope
from djinn_lab.protocol.rest.login import LoginWay

ENTRY_POINTS = "djinn_lab.identity_providers"


class Identity(msgspec.Struct, frozen=True):
    """``user``: the provider's name for the user, any text. ``expires_at``: when the token ends, in seconds
    since the epoch. ``ask_again_at``: from then on the provider is asked again, while the token still counts;
    None for never. ``scopes``: None for all that the role may."""

    user: str
    role: Role
    expires_at: float
    ask_again_at: float | None = None
    scopes: frozenset[TokenScope] | None = None


class IdentityRefused(Exception):
    """The token is not good, or its user has no role here. The text is for that user and for the audit.
    ``user``: whose it is, where that is proven."""

    def __init__(self, detail: str, user: str = "") -> None:
        super().__init__(detail)
        self.user = user


class IdentityUnknown(Exception):
    """The provider does not answer, so the token may be good."""


class IdentityProvider(Protocol):
    """``name``: begins the names of its users (``oidc:ann``), so that none is a user of the pool itself."""

    name: str

    def may_know(self, secret: str) -> bool:
        """Return whether a token has the form of this provider's. Asks nothing."""
        ...

    async def identify(self, secret: str) -> Identity:
        """Return whose token it is. Raises IdentityRefused or IdentityUnknown. Blocks no event loop."""
        ...

    def way(self) -> LoginWay:
        """Return what a client must know to get a token there. It is public."""
        ...


def user_name(provider: str, user: str) -> str:
    """Return the pool's name for a provider's user: no two users have one, and no local user has it."""
    return f"{provider}:{quote(user, safe='@')}"


def load_provider(name: str) -> IdentityProvider:
    """Make the provider that an installed package offers under this name. Raises OptionError."""
    methods = ("may_know(secret)", "identify(secret)", "way()")
    return cast(IdentityProvider, load_plugin(ENTRY_POINTS, "identity provider", name, methods).made)
