"""The token that a client sends: a given one, the runtime file's, a login's, or that of a JupyterHub."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import httpx
import msgspec

from djinn_lab.client.logins import current_token
from djinn_lab.client.trust import not_proven, public_context, tls_context
from djinn_lab.client.ways import by_proxy, proxy_for
from djinn_lab.errors import AuthenticationError, PoolNotFound, PoolSilent
from djinn_lab.protocol.rest.login import JUPYTERHUB, OIDC, LoginWay
from djinn_lab.protocol.runtime_file import read_runtime

TOKEN_VARIABLE = "DJINN_TOKEN"
HUB_VARIABLE = "JUPYTERHUB_API_TOKEN"
ASK_TIMEOUT_S = 10.0
TokenSource = Callable[[], str]


def token_source(url: str, given: str | None = None, certificate: str | None = None) -> TokenSource:
    """Return a function that returns the token for the pool at ``url``, each time the one that counts now.
    ``given``: default ``DJINN_TOKEN``, else the runtime file's, a login's, or the Hub's where the pool takes
    it. The function raises AuthenticationError when there is none, and what asking the pool raises."""
    fixed = given or os.environ.get(TOKEN_VARIABLE)
    address = url.rstrip("/")

    def find() -> str:
        if fixed:
            return fixed
        info = read_runtime()
        if info is not None and info.url == address:
            return info.token
        token = current_token(address)
        if token is not None:
            return token
        ways = {one.way for one in ways_in(address, certificate)}
        hub = os.environ.get(HUB_VARIABLE)
        if hub and JUPYTERHUB in ways:
            return hub
        advice = f"Pass token=..., or set {TOKEN_VARIABLE} to the token you were given."
        if OIDC in ways:
            advice = f"Log in: djinn-lab login --pool {address}. Or set {TOKEN_VARIABLE}."
        raise AuthenticationError(f"no token for the pool at {address}.", advice)

    return find


def ways_in(url: str, certificate: str | None = None) -> Sequence[LoginWay]:
    """Ask a pool by which ways users get in; nothing for one of an older version. Raises PoolNotFound and
    AuthenticationError."""
    try:
        verify = tls_context(url, certificate) or public_context()
        answer = httpx.get(
            f"{url}/v1/login", timeout=ASK_TIMEOUT_S, trust_env=False, verify=verify, proxy=proxy_for(url)
        )
        return msgspec.json.decode(answer.content, type=list[LoginWay]) if answer.is_success else ()
    except msgspec.DecodeError:
        return ()
    except httpx.InvalidURL as error:
        raise PoolNotFound(f"{url} is no address of a pool ({error}).", "Check DJINN_POOL.") from None
    except httpx.HTTPError as error:
        unproven = not_proven(url, error)
        if unproven is not None:
            raise unproven from None
        raise PoolSilent(f"no pool answers at {url}{by_proxy(url)} ({error}).", "Check DJINN_POOL.") from None
