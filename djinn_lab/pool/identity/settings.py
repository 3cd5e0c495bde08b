"""Which identity providers a pool has: as options, and as one text for the pool's command line."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec

from djinn_lab.errors import OptionError
from djinn_lab.pool.identity.provider import IdentityProvider, load_provider
from djinn_lab.pool.identity.roles import RoleMapping, checked, parse_roles


class OidcSettings(msgspec.Struct, frozen=True):
    """``audience``: that a token must name. ``role_claim``: with the groups of a user, dots lead into it."""

    issuer: str
    client_id: str
    audience: str
    role_claim: str
    roles: RoleMapping


class HubSettings(msgspec.Struct, frozen=True):
    """``api``: the Hub's REST API. ``admin_role``: of the Hub's admins, empty for none by that. ``scope``:
    that a token must have, empty for any token."""

    api: str
    roles: RoleMapping
    admin_role: str = ""
    scope: str = ""


class IdentitySettings(msgspec.Struct, frozen=True):
    """``others``: names of installed providers (entry points)."""

    oidc: OidcSettings | None = None
    jupyterhub: HubSettings | None = None
    others: tuple[str, ...] = ()

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


def decoded(text: str) -> IdentitySettings:
    return msgspec.json.decode(text, type=IdentitySettings)


def checked_address(option: str, url: str, only_https: bool) -> str:
    """Return an address without its last slash. Raises OptionError for none, and where ``only_https`` for one
    in the clear that is not on loopback."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise OptionError(f"{option}: {url!r} is not the address of a server.", "Write https://HOST/PATH.")
    if only_https and parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise OptionError(f"{option}: {url} would be read in the clear.", "Write https://...")
    return url.rstrip("/")


def read_settings(
    *,
    oidc_issuer: str | None,
    oidc_client_id: str | None,
    oidc_audience: str | None,
    oidc_role_claim: str,
    oidc_roles: str,
    oidc_default_role: str,
    jupyterhub_api: str | None,
    jupyterhub_roles: str,
    jupyterhub_default_role: str,
    jupyterhub_admin_role: str,
    jupyterhub_scope: str,
    identity_providers: Sequence[str],
) -> IdentitySettings:
    """Read the options of ``djinn-lab pool start``. Raises OptionError."""
    oidc = jupyterhub = None
    if (oidc_issuer is None) != (oidc_client_id is None):
        raise OptionError("An issuer has a client.", "Give both --oidc-issuer and --oidc-client-id.")
    if oidc_issuer is not None and oidc_client_id is not None:
        issuer = checked_address("--oidc-issuer", oidc_issuer, only_https=True)
        roles = parse_roles("--oidc-roles", oidc_roles, oidc_default_role, "--oidc-default-role")
        audience = oidc_audience or oidc_client_id
        oidc = OidcSettings(issuer, oidc_client_id, audience, oidc_role_claim, roles)
    if jupyterhub_api is not None:
        api = checked_address("--jupyterhub-api", jupyterhub_api, only_https=False)
        given = ("--jupyterhub-roles", jupyterhub_roles, jupyterhub_default_role, "--jupyterhub-default-role")
        admin = checked("--jupyterhub-admin-role", jupyterhub_admin_role) if jupyterhub_admin_role else ""
        only_admins = admin and not (jupyterhub_roles or jupyterhub_default_role)
        mapping = RoleMapping() if only_admins else parse_roles(*given)
        jupyterhub = HubSettings(api, mapping, admin, jupyterhub_scope)
    for name in identity_providers:
        load_provider(name)
    return IdentitySettings(oidc, jupyterhub, tuple(identity_providers))


def make_providers(settings: IdentitySettings, now_s: Callable[[], float]) -> tuple[IdentityProvider, ...]:
    """Make the providers, in the order in which they are asked. What none needs is not imported: a
    pool starts sooner. Raises OptionError."""
    made: list[IdentityProvider] = []
    if settings.oidc is not None:
        from djinn_lab.pool.identity.oidc import OidcProvider

        made.append(OidcProvider(settings.oidc, now_s))
    made += [load_provider(name) for name in settings.others]
    if settings.jupyterhub is not None:
        from djinn_lab.pool.identity.jupyterhub import JupyterHubProvider

        made.append(JupyterHubProvider(settings.jupyterhub, now_s))
    return tuple(made)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
