"""Users of an OpenID Connect issuer, by the JSON Web Tokens that it signed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import httpx
import msgspec
from joserfc import jwk, jws, jwt
from joserfc.errors import JoseError

from djinn_lab.errors import OptionError
from djinn_lab.pool.identity.provider import Identity, IdentityRefused, IdentityUnknown, user_name
from djinn_lab.pool.identity.settings import OidcSettings, checked_address
from djinn_lab.protocol.rest.login import OIDC, LoginWay

ALGORITHMS = ("RS256", "ES256")
"""By public keys alone: no secret of a client signs for a user, and no token comes unsigned."""
LEEWAY_S = 30
"""That the clocks of issuer and pool may differ."""
TOKEN_CHARS_MAX = 16_384
FETCH_TIMEOUT_S = 5.0
KEYS_FRESH_S = 3600.0
FETCH_AGAIN_S = 10.0
"""Between two fetches of the keys, however many tokens name keys that are unknown."""
DISCOVERY = "/.well-known/openid-configuration"
PUBLIC = frozenset(("kty", "kid", "n", "e", "crv", "x", "y"))
"""Members of a key that are taken: the numbers, and its name."""
KINDS = ("RSA", "EC")
SUBJECT = "sub="
"""Begins the names of users without a user name, and of no others."""
Key = jwk.RSAKey | jwk.ECKey

log = logging.getLogger(__name__)


class Discovered(msgspec.Struct, frozen=True):
    """The part of the discovery document that a pool needs."""

    issuer: str
    jwks_uri: str


class OidcProvider:
    """``now_s``: seconds since the epoch."""

    name = OIDC

    def __init__(self, settings: OidcSettings, now_s: Callable[[], float]) -> None:
        self._settings, self._now_s = settings, now_s
        self._keys = IssuerKeys(settings.issuer, now_s)
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(now_s()),
            leeway=LEEWAY_S,
            iss={"essential": True, "values": [settings.issuer, f"{settings.issuer}/"]},
            aud={"essential": True, "value": settings.audience},
            exp={"essential": True},
            sub={"essential": True},
        )

    def may_know(self, secret: str) -> bool:
        return secret.count(".") == 2 and len(secret) <= TOKEN_CHARS_MAX

    def way(self) -> LoginWay:
        known = self._settings
        return LoginWay(OIDC, known.issuer, known.client_id, known.audience)

    async def identify(self, secret: str) -> Identity:
        try:
            header = jws.extract_compact(secret.encode()).headers()
            if header.get("alg") not in ALGORITHMS:
                raise IdentityRefused(f"The token must be signed with {' or '.join(ALGORITHMS)}.")
            key = await self._keys.find(header.get("kid"))
            claims = jwt.decode(secret, key, algorithms=list(ALGORITHMS)).claims
            self._claims.validate(claims)
        except (JoseError, ValueError, UnicodeError) as error:
            raise IdentityRefused(f"The token is not good: {error}") from None
        return self._identity(claims)

    def _identity(self, claims: Mapping[str, object]) -> Identity:
        name = claims.get("preferred_username")
        named = isinstance(name, str) and name and not name.startswith(SUBJECT)
        user = str(name) if named else f"{SUBJECT}{claims['sub']}"
        role = self._settings.roles.role_of(_groups(claims, self._settings.role_claim))
        if role is None:
            shown = user_name(OIDC, user)
            raise IdentityRefused(f"{shown} is in no group that has a role on this pool.", shown)
        expires = claims["exp"]
        assert isinstance(expires, int | float)
        return Identity(user, role, expires + LEEWAY_S)


class IssuerKeys:
    """The keys that an issuer publishes, fetched when one is missing and renewed beside the requests."""

    def __init__(self, issuer: str, now_s: Callable[[], float]) -> None:
        self._issuer, self._now_s = issuer, now_s
        self._keys: dict[str | None, Key] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: object) -> Key:
        """Return the key of this id; without an id, the only key. Raises IdentityRefused for an unknown key,
        and IdentityUnknown when the issuer does not answer."""
        wanted = kid if isinstance(kid, str) else None
        now_s = self._now_s()
        known = self._known(wanted)
        if known is not None:
            if now_s > max(self._fetched_at + KEYS_FRESH_S, self._tried_at + FETCH_AGAIN_S):
                self._fetch_soon()  # the known key serves meanwhile
            return known
        if self._fetching is not None or now_s > self._tried_at + FETCH_AGAIN_S:
            await asyncio.shield(self._fetch_soon())
        known = self._known(wanted)
        if known is not None:
            return known
        if self._fetched_at < self._tried_at:
            raise IdentityUnknown(f"The issuer {self._issuer} does not answer.")
        raise IdentityRefused("The token names a key that its issuer does not have.")

    def _known(self, kid: str | None) -> Key | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def _fetch_soon(self) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._tried_at = self._now_s()
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(), name="issuer's keys")
        return self._fetching

    async def _fetch(self) -> None:
        """Replace the keys by those that the issuer has now; keep them when it does not answer."""
        try:
            async with httpx.AsyncClient(timeout=FETCH_TIMEOUT_S, trust_env=False) as web:
                answer = (await web.get(self._issuer + DISCOVERY)).raise_for_status()
                found = msgspec.json.decode(answer.content, type=Discovered)
                if found.issuer.rstrip("/") != self._issuer:
                    raise ValueError(f"it calls itself {found.issuer[:200]}")
                address = checked_address("jwks_uri", found.jwks_uri, only_https=True)
                published = (await web.get(address)).raise_for_status()
            self._keys = _read_keys(published.content)
            self._fetched_at = self._tried_at
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OptionError) as error:
            log.warning("the keys of %s cannot be read: %s", self._issuer, error)
        finally:
            self._fetching = None


def _read_keys(content: bytes) -> dict[str | None, Key]:
    """Take the keys that verify by :data:`ALGORITHMS` and leave out all others."""
    found: dict[str | None, Key] = {}
    for one in msgspec.json.decode(content, type=dict[str, list[dict[str, object]]])["keys"]:
        kind = one.get("kty")
        if kind not in KINDS or one.get("use", "sig") != "sig":
            continue
        if one.get("alg", "RS256" if kind == "RSA" else "ES256") not in ALGORITHMS:
            continue
        try:
            key = jwk.import_key({name: str(value) for name, value in one.items() if name in PUBLIC})
        except (JoseError, ValueError, KeyError, TypeError) as error:
            log.warning("a key of the issuer is left out: %s", error)
            continue
        if isinstance(key, jwk.RSAKey | jwk.ECKey):
            found[key.kid] = key
    return found


def _groups(claims: Mapping[str, object], path: str) -> list[str]:
    """Return the groups of a claim. Where there is none of this name, its dots lead into others, as in
    ``realm_access.roles``."""
    found: object = claims.get(path)
    if found is None:
        found = claims
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return [found]
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
