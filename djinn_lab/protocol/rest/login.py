"""``/v1/login``: the ways into a pool, for clients that have no token yet."""

from __future__ import annotations

import msgspec

TOKEN, OIDC, JUPYTERHUB = "token", "oidc", "jupyterhub"


class LoginWay(msgspec.Struct, frozen=True, omit_defaults=True):
    """``way``: ``token`` (of the pool's administrator), ``oidc``, ``jupyterhub``, or the name of another
    provider. ``issuer``, ``client_id``, ``audience``: of OpenID Connect."""

    way: str
    issuer: str = ""
    client_id: str = ""
    audience: str = ""
