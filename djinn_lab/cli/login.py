"""``djinn-lab login`` and ``logout``: at the identity provider of a pool, by its device flow."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from djinn_lab.cli.output import print_line
from djinn_lab.client.moments import shown_moment
from djinn_lab.errors import OptionError, PoolNotFound

Pool = Annotated[
    str | None, typer.Option("--pool", help="The pool's address. Default: DJINN_POOL, else this machine's.")
]


def log_in(pool: Pool = None) -> None:
    """Log in to a pool whose users an OpenID Connect issuer knows: confirm a code in any browser."""
    from djinn_lab.client import logins
    from djinn_lab.client.credentials import ways_in
    from djinn_lab.client.rest import PoolClient
    from djinn_lab.protocol.rest.login import OIDC

    url = _address(pool)
    way = next((one for one in ways_in(url) if one.way == OIDC), None)
    if way is None:
        raise OptionError(
            f"The pool at {url} has no login by an identity provider.",
            "Ask its administrator for a token, and set DJINN_TOKEN.",
        )
    issuer = logins.discover(way)
    code = logins.begin(way, issuer)
    print_line(f"Open {code.verification_uri_complete or code.verification_uri} in a browser.")
    print_line(f"Confirm this code there: {code.user_code}")
    login = logins.finish(way, issuer, code)
    status = PoolClient(url, login.token).status()
    logins.save(url, login)
    ends = "" if login.refresh_token else f" until {shown_moment(login.expires_at)}"
    print_line(f"Logged in to {url} as {status.user} ({status.role}){ends}.")


def log_out(pool: Pool = None) -> None:
    """End the login to a pool, here and at its issuer."""
    from djinn_lab.client import logins

    url = _address(pool)
    known = logins.saved(url)
    if known is None:
        raise OptionError(f"There is no login to {url} here.")
    logins.save(url, None)
    ended = "" if logins.revoke(known) else " Its issuer did not confirm it: the token lasts until its end."
    print_line(f"Logged out of {url}.{ended}")


def _address(pool: str | None) -> str:
    from djinn_lab.client.addresses import leader_url
    from djinn_lab.protocol.runtime_file import read_runtime

    given = pool or os.environ.get("DJINN_POOL")
    if given:
        return leader_url(given)
    info = read_runtime()
    if info is None:
        raise PoolNotFound("No pool is running on this machine.", "Name one: djinn-lab login --pool URL.")
    return info.url
