"""Users by bearer token, and what each role may do.

A user may have several tokens, each with a name, a role of its own and an end. Tokens are random, and only
their digests are kept: how long it takes to look one up says nothing about any token.
"""

from __future__ import annotations

import getpass
import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator
from enum import IntEnum

import msgspec

from djinn_lab.pool.scopes import TokenScope, within
from djinn_lab.protocol.messages import UNKNOWN_TOKEN

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


TOKEN_DAYS = 90.0
TOKEN_DAYS_MAX = 3650.0
TOKENS_MAX = 50
"""Of a user."""
REFUSED_MAX = 10_000
FIRST_TOKEN = "first"
RUNTIME_TOKEN = "runtime file"
ROTATED = ".old"
"""Ends the name of a token that was rotated, until it ends itself."""
DAY_S = 86_400.0


class User(msgspec.Struct, frozen=True):
    """``above``: the account in the share tree that the user's own lies below, such as ``"vision/train"``,
    None at the top. ``notebook``: the batch notebook that speaks for the user, empty for none. ``role``: the
    lower of the user's and of ``token_role``, that of the token that was presented. ``token``: its digest.
    ``scopes``: what it is limited to, None for all that the role may. ``way``: by which token the user came
    in, ``provider``: which identity provider knows the user, empty for the pool itself."""

    name: str
    role: Role
    above: str | None = None
    notebook: str = ""
    token: str = ""
    token_role: Role = Role.ADMIN
    scopes: frozenset[TokenScope] | None = None
    way: str = ""
    provider: str = ""

    @property
    def account(self) -> str:
        """Return the leaf of the share tree that pays for the user's cells."""
        return f"{self.above}/{self.name}" if self.above else self.name


class Token(msgspec.Struct, frozen=True):
    """``role``: the most that it may do, whatever its user may; ``ADMIN`` for all that the user may at the
    time. ``expires_at``: seconds since the epoch, None for never. ``notebook``, ``scopes``, ``provider``: as
    of :class:`User`."""

    digest: str
    user: str
    name: str
    role: Role
    created_at: float
    expires_at: float | None = None
    notebook: str = ""
    scopes: frozenset[TokenScope] | None = None
    provider: str = ""

    @property
    def way(self) -> str:
        """Name it for the audit."""
        if self.provider:
            return f"a login by {self.provider}"
        return f"the token {self.name!r}" if self.name else "the token of a batch notebook"

    def within(self, role: Role, scopes: frozenset[TokenScope] | None) -> bool:
        """Return whether a token of this role and these scopes may do all that this one may."""
        return self.role <= role and within(self.scopes, scopes)


class Denial(msgspec.Struct, frozen=True):
    """Say why a header names no user. ``user``: whose token it was, where that is proven. ``reason``: for the
    audit."""

    detail: str = UNKNOWN_TOKEN
    user: str = ""
    reason: str = "without a valid token"


def new_token() -> str:
    """256 random bits, so that a plain digest of it is safe to store."""
    return secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def bearer_secret(authorization: str | None) -> str:
    """Return the token of an ``Authorization`` header, empty for none."""
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def checked_role(text: str) -> Role:
    """Return the role of this name. Raises ValueError when there is none."""
    if text.upper() not in Role.__members__:
        raise ValueError(f"{text!r} is not a role; there are {', '.join(r.label for r in Role)}")
    return Role[text.upper()]


def expiry(days: float | None, now_s: float) -> float | None:
    """Return when a token of ``days`` ends: TOKEN_DAYS for None, never for 0. Raises ValueError."""
    given = TOKEN_DAYS if days is None else days
    if not 0 <= given <= TOKEN_DAYS_MAX:
        raise ValueError(f"A token lives for 0 (for ever) to {TOKEN_DAYS_MAX:.0f} days, not {given:g}")
    return now_s + given * DAY_S if given else None


def owner_name() -> str:
    """Return the operating system's name of the pool's owner."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "owner"


class Authentication:
    """Know all users and tokens. The owner is an admin; the owner's token of the runtime file lives as long
    as the process. ``now_s``: the time, in seconds since the epoch."""

    def __init__(self, owner_token: str, now_s: Callable[[], float] = time.time) -> None:
        self.owner = owner_name()
        self._now_s = now_s
        self._users = {self.owner: User(self.owner, Role.ADMIN)}
        self._tokens: dict[str, Token] = {}
        self._refused: dict[str, tuple[Denial, float]] = {}
        """Tokens that identity providers refused lately, and until when they are not asked again."""
        self._add(Token(token_digest(owner_token), self.owner, RUNTIME_TOKEN, Role.ADMIN, now_s()))

    def user_of(self, authorization: str | None) -> User | None:
        """Find the user of an ``Authorization`` header, None for an unknown or expired token."""
        token = self._presented(authorization)
        if token is None or self._expired(token):
            return None
        user = self._users[token.user]
        return msgspec.structs.replace(
            user,
            role=self.role_of(token),
            notebook=token.notebook,
            token=token.digest,
            token_role=token.role,
            scopes=token.scopes,
            way=token.way,
        )

    def denial(self, authorization: str | None) -> Denial:
        """Say why a header names no user."""
        secret = bearer_secret(authorization)
        digest = token_digest(secret) if secret else ""
        token = self._tokens.get(digest)
        if token is None or token.provider:
            found = self._refused.get(digest)
            return found[0] if found is not None else Denial()
        detail = (
            f"The token {token.name!r} of {token.user} has expired. Ask the pool's administrator for another "
            "one. Before it ends, its user can rotate it: djinn-lab users token rotate NAME."
        )
        return Denial(detail, token.user, f"with an expired token of {token.user}")

    def is_valid(self, digest: str) -> bool:
        """Return whether the token with this digest still counts."""
        token = self._tokens.get(digest)
        return token is not None and not self._expired(token)

    def runs_cells(self, digest: str) -> bool:
        """Return whether the user of the token with this digest may still run cells with it."""
        return self.role_of(self._tokens[digest]) >= Role.USER

    def role_of(self, token: Token) -> Role:
        """Return what a token may do now: as much as its user, up to its own role."""
        return min(token.role, self._users[token.user].role)

    def named(self, name: str) -> User | None:
        return self._users.get(name)

    def users(self) -> list[User]:
        return sorted(self._users.values(), key=lambda user: user.name)

    def add(self, name: str, role: str, above: str | None = None) -> User:
        """Add a user without a token. Raises ValueError on a bad or taken name, a role that is none, or a bad
        account."""
        if above is not None and not all(_NAME.fullmatch(part) for part in above.split("/")):
            raise ValueError(f"{above!r} is not an account; write it like organisation/project")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a user name (letters, digits and . _ @ -, at most 64)")
        if above is not None and (above == name or above.endswith(f"/{name}")):
            above = above[: -len(name) - 1] or None  # written with the user's own account, as shares are
        checked = checked_role(role)
        if name in self._users:
            raise ValueError(
                f"There is a user {name!r} already: djinn-lab users role or users remove changes that"
            )
        user = self._users[name] = User(name, checked, above)
        return user

    def set_role(self, name: str, role: str) -> User:
        """Give a user another role, which holds for the user's tokens from now on. Raises LookupError for an
        unknown user, ValueError for a role that is none, and where the role is not an admin's to change."""
        known = self._users.get(name)
        if known is None:
            raise LookupError(f"There is no user {name[:80]!r}")
        checked = checked_role(role)
        if known.provider:
            raise ValueError(f"{name} logs in by {known.provider}, which gives the role")
        if name == self.owner and checked is not Role.ADMIN:
            raise ValueError(f"{name} runs this pool and stays admin, so that there is always one")
        user = self._users[name] = msgspec.structs.replace(known, role=checked)
        return user

    def remove(self, name: str) -> bool:
        """Remove a user, and return whether there was one. The owner stays."""
        if name == self.owner or name not in self._users:
            return False
        del self._users[name]
        self._tokens = {digest: token for digest, token in self._tokens.items() if token.user != name}
        return True

    # -- tokens --------------------------------------------------------------------------------------------

    def tokens(self, user: str | None = None) -> list[Token]:
        """List tokens that people made and that have not ended."""
        found = [token for token in self._lasting() if user in (None, token.user)]
        return sorted(found, key=lambda token: (token.user, token.created_at))

    def restore(self, token: Token) -> None:
        """Take a token over from the database. That of an unknown user is left out."""
        if token.user in self._users:
            self._add(token)

    def issue(
        self,
        user: str,
        name: str,
        role: Role,
        expires_at: float | None,
        scopes: frozenset[TokenScope] | None = None,
    ) -> tuple[Token, str]:
        """Make a token of at most this role; the second part is the secret. Raises ValueError on a bad or
        taken name, or when the user has too many."""
        if not _NAME.fullmatch(name) or name.endswith(ROTATED):
            raise ValueError(f"{name!r} is not a token's name (letters, digits and . _ @ -, at most 64)")
        theirs = self.tokens(user)
        if any(token.name == name for token in theirs):
            raise ValueError(
                f"{user} has a token {name!r} already; rotate or revoke it, or choose another name"
            )
        if len(theirs) >= TOKENS_MAX:
            raise ValueError(f"{user} has {TOKENS_MAX} tokens, which is the limit; revoke some first")
        secret = new_token()
        token = Token(token_digest(secret), user, name, role, self._now_s(), expires_at, scopes=scopes)
        self._add(token)
        return token, secret

    def rotate(self, user: str, name: str, days: float | None, overlap_s: float) -> tuple[list[Token], str]:
        """Make a new secret for a token; the old one ends after ``overlap_s``. ``days``: until the new one
        ends, 0 for never, None for as long as the old one was made for. Returns the new and the old one, and
        the secret. Raises LookupError when there is no such token, ValueError for bad ``days``."""
        old = self._find(user, name)
        if days is None:
            days = 0.0 if old.expires_at is None else (old.expires_at - old.created_at) / DAY_S
        expires_at = expiry(days, self._now_s())
        self._drop(user, name + ROTATED)
        ends_at = self._now_s() + overlap_s
        ended = msgspec.structs.replace(
            old, name=name + ROTATED, expires_at=min(ends_at, old.expires_at or ends_at)
        )
        secret = new_token()
        new = msgspec.structs.replace(
            old, digest=token_digest(secret), created_at=self._now_s(), expires_at=expires_at
        )
        self._add(ended)
        self._add(new)
        return [new, ended], secret

    def revoke(self, user: str, name: str) -> None:
        """End a token and the one that it replaced. Raises LookupError when there is none."""
        self._find(user, name)
        self._drop(user, name)
        self._drop(user, name + ROTATED)

    def mint(self, user: User, notebook: str = "") -> str:
        """Make a token for a user's batch notebook. It is never stored, and grants the role ``user`` at
        most."""
        secret = new_token()
        role = min(user.role, Role.USER)
        self._add(Token(token_digest(secret), user.name, "", role, self._now_s(), None, notebook))
        return secret

    def end_minted(self, secret: str) -> None:
        """Invalidate a minted token."""
        self._tokens.pop(token_digest(secret), None)

    # -- users of identity providers -----------------------------------------------------------------------

    def admit(
        self,
        digest: str,
        provider: str,
        user: str,
        role: Role,
        expires_at: float,
        scopes: frozenset[TokenScope] | None = None,
    ) -> None:
        """Take a token that an identity provider vouches for, in place of what was known before. ``user``: a
        name that begins with the provider's."""
        self._refused.pop(digest, None)
        self._users[user] = User(user, role, provider=provider)
        self._add(Token(digest, user, "", role, self._now_s(), expires_at, "", scopes, provider))

    def refuse(self, digest: str, denial: Denial, until_s: float) -> None:
        """Drop a token that no identity provider knows any more, and say why until then."""
        self._tokens.pop(digest, None)
        while len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[digest] = (denial, until_s)

    def knows(self, digest: str) -> bool:
        """Return whether nothing is to be asked about a token: it is the pool's own, or admitted, or refused
        just now."""
        token = self._tokens.get(digest)
        if token is not None:
            return not (token.provider and self._expired(token))
        refused = self._refused.get(digest)
        return refused is not None and self._now_s() < refused[1]

    def sweep(self) -> None:
        """Forget the admitted tokens that have ended, and refusals that are over."""
        for digest, token in list(self._tokens.items()):
            if token.provider and self._expired(token):
                del self._tokens[digest]
        for digest, (_, until_s) in list(self._refused.items()):
            if self._now_s() >= until_s:
                del self._refused[digest]

    # -- parts ---------------------------------------------------------------------------------------------

    def _add(self, token: Token) -> None:
        self._tokens[token.digest] = token

    def _presented(self, authorization: str | None) -> Token | None:
        secret = bearer_secret(authorization)
        return self._tokens.get(token_digest(secret)) if secret else None

    def _expired(self, token: Token) -> bool:
        return token.expires_at is not None and self._now_s() >= token.expires_at

    def _lasting(self) -> Iterator[Token]:
        for token in self._tokens.values():
            if token.name and token.name != RUNTIME_TOKEN and not self._expired(token):
                yield token

    def _find(self, user: str, name: str) -> Token:
        for token in self._lasting():
            if (token.user, token.name) == (user, name):
                return token
        raise LookupError(f"{user} has no token {name[:80]!r}")

    def _drop(self, user: str, name: str) -> None:
        for digest, token in list(self._tokens.items()):
            if (token.user, token.name) == (user, name):
                del self._tokens[digest]
