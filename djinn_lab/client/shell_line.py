"""The line that sets a shell up for a pool, as commands print it and pages show it beside a new token."""

from __future__ import annotations

from socket import gethostname
from urllib.parse import urlsplit

from djinn_lab.client.requests import PoolRequests
from djinn_lab.protocol.certificates import CERTIFICATE_VARIABLE
from djinn_lab.protocol.runtime_file import read_runtime

EVERYWHERE = ("0.0.0.0", "::")


def shell_line(client: PoolRequests, secret: str) -> str:
    """Return the line that sets a shell up for this pool, also on another machine where that reaches it."""
    certificate = f" {CERTIFICATE_VARIABLE}={client.fingerprint}" if client.fingerprint else ""
    return f"export DJINN_POOL={_reached_at(client)} DJINN_TOKEN={secret}{certificate}"


def _reached_at(client: PoolRequests) -> str:
    """Return the pool's address, with this machine's name where the pool listens on all of its addresses."""
    info = read_runtime()
    if info is None or info.url != client.url or info.settings.get("host") not in EVERYWHERE:
        return client.url
    address = urlsplit(client.url)
    return f"{address.scheme}://{gethostname()}:{address.port}"
