"""Users of a JupyterHub, by API tokens that the Hub is asked about."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import msgspec

from djinn_lab.pool.authentication import checked_role
from djinn_lab.pool.identity.provider import Identity, IdentityRefused, IdentityUnknown, user_name
from djinn_lab.pool.identity.settings import HubSettings
from djinn_lab.protocol.rest.login import JUPYTERHUB, LoginWay

PREFIX = "hub"
ASK_TIMEOUT_S = 5.0
FRESH_S = 20.0
"""For so long an answer of the Hub counts without another."""
STALE_S = 300.0
"""For so long it counts while the Hub does not answer: its restart ends no session."""
TOKEN_CHARS_MAX = 256
_MISSING = (401, 403, 404)


class HubUser(msgspec.Struct, frozen=True):
    """The part of the Hub's answer that a pool needs. ``kind``: ``user`` or ``service``."""

    name: str
    kind: str = "user"
    admin: bool = False
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


class JupyterHubProvider:
    """``now_s``: seconds since the epoch."""

    name = PREFIX

    def __init__(self, settings: HubSettings, now_s: Callable[[], float]) -> None:
        self._settings, self._now_s = settings, now_s

    def may_know(self, secret: str) -> bool:
        return "." not in secret and secret.isascii() and len(secret) <= TOKEN_CHARS_MAX

    def way(self) -> LoginWay:
        return LoginWay(JUPYTERHUB)

    async def identify(self, secret: str) -> Identity:
        asked_at = self._now_s()
        user = await self._ask(secret)
        shown = user_name(PREFIX, user.name)
        if user.kind != "user":
            raise IdentityRefused("This is the token of a service of the Hub, not of a user.", shown)
        wanted = self._settings.scope
        if wanted and wanted not in user.scopes:
            raise IdentityRefused(f"The Hub's token lacks the scope {wanted}.", shown)
        roles = [self._settings.roles.role_of(user.groups)]
        if user.admin and self._settings.admin_role:
            roles.append(checked_role(self._settings.admin_role))
        given = [role for role in roles if role is not None]
        if not given:
            raise IdentityRefused(f"{shown} is in no group of the Hub that has a role on this pool.", shown)
        return Identity(user.name, max(given), asked_at + STALE_S, asked_at + FRESH_S)

    async def _ask(self, secret: str) -> HubUser:
        try:
            async with httpx.AsyncClient(timeout=ASK_TIMEOUT_S, trust_env=False) as web:
                answer = await web.get(
                    f"{self._settings.api}/user", headers={"Authorization": f"token {secret}"}
                )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise IdentityUnknown(f"The JupyterHub does not answer ({error}).") from None
        if answer.status_code in _MISSING:
            raise IdentityRefused("The JupyterHub does not know this token.")
        if not answer.is_success:
            raise IdentityUnknown(f"The JupyterHub answered with HTTP {answer.status_code}.")
        try:
            return msgspec.json.decode(answer.content, type=HubUser)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise IdentityUnknown(f"The JupyterHub's answer is not understood: {error}.") from None
