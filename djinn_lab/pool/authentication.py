"""Users by bearer token, compared in constant time, and what each role may do."""

from __future__ import annotations

import getpass
import hashlib
import hmac
import re
import secrets
from enum import IntEnum

import msgspec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Role(IntEnum):
    """Each may do what those below it may. ``VIEWER`` reads, ``USER`` runs cells, ``OPERATOR`` also
    cancels the jobs and closes the sessions of others, ``ADMIN`` also manages users, sees code and stops
    the pool."""

    VIEWER = 0
    USER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower()


class User(msgspec.Struct, frozen=True):
    """``above``: the account in the share tree that the user's own lies below, such as ``"vision/train"``,
    None at the top. ``notebook``: the batch notebook that speaks for the user, empty for none."""

    name: str
    role: Role
    above: str | None = None
    notebook: str = ""

    @property
    def account(self) -> str:
        """Return the leaf of the share tree that pays for the user's cells."""
        return f"{self.above}/{self.name}" if self.above else self.name


def new_token() -> str:
    """256 random bits, so that a plain digest of it is safe to store."""
    return secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def owner_name() -> str:
    """Return the operating system's name of the pool's owner."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "owner"


class Authentication:
    """Know all users by token digest. The owner is an admin and lives as long as the process."""

    def __init__(self, owner_token: str) -> None:
        self._users: dict[str, User] = {token_digest(owner_token): User(owner_name(), Role.ADMIN)}
        self.owner = owner_name()
        self._minted: dict[str, User] = {}

    def user_of(self, authorization: str | None) -> User | None:
        """Find the user of an ``Authorization`` header, None for an unknown token."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        presented = token_digest(token.strip())
        found = None
        for digest, user in (*self._users.items(), *self._minted.items()):
            if hmac.compare_digest(digest, presented):
                found = user
        return found

    def named(self, name: str) -> User | None:
        return next((user for user in self._users.values() if user.name == name), None)

    def mint(self, user: User, notebook: str = "") -> str:
        """Make a token for a user's batch notebook. It is never stored, and grants the role ``user`` at
        most."""
        token = new_token()
        role = min(user.role, Role.USER)
        self._minted[token_digest(token)] = msgspec.structs.replace(user, role=role, notebook=notebook)
        return token

    def revoke(self, token: str) -> None:
        """Invalidate a minted token."""
        self._minted.pop(token_digest(token), None)

    def users(self) -> list[User]:
        return sorted(self._users.values(), key=lambda user: user.name)

    def add(self, name: str, role: str, digest: str, above: str | None = None) -> User:
        """Raises ValueError on a bad or taken name, a role that is none, or a bad account."""
        if above is not None and not all(_NAME.fullmatch(part) for part in above.split("/")):
            raise ValueError(f"{above!r} is not an account; write it like organisation/project")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a user name (letters, digits and . _ @ -, at most 64)")
        if role.upper() not in Role.__members__:
            raise ValueError(f"{role!r} is not a role; there are {', '.join(r.label for r in Role)}")
        if any(user.name == name for user in self._users.values()):
            raise ValueError(f"There is a user {name!r} already")
        user = User(name, Role[role.upper()], above)
        self._users[digest] = user
        return user

    def remove(self, name: str) -> bool:
        """Remove a user, and return whether there was one. The owner stays."""
        if name == self.owner:
            return False
        digests = [digest for digest, user in self._users.items() if user.name == name]
        for digest in digests:
            del self._users[digest]
        for digest in [digest for digest, user in self._minted.items() if user.name == name]:
            del self._minted[digest]
        return bool(digests)
