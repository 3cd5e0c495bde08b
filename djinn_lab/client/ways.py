"""The way to a pool: straight, or by the proxy that the environment names.

As other programs have it: ``HTTPS_PROXY`` for ``https`` addresses, ``HTTP_PROXY`` for ``http``, ``ALL_PROXY``
for both, and ``NO_PROXY`` with the hosts that are reached without one. This machine is always among those.
"""

from __future__ import annotations

import base64
import http.client
import socket
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from djinn_lab.errors import OptionError

NO_PROXY_ADVICE = "Name an http:// proxy, or set NO_PROXY to the hosts that are reached without one."


def proxy_for(url: str) -> str | None:
    """Return the address of the proxy by which to ask ``url``, None for none. Raises OptionError for one of a
    kind that is not spoken, such as SOCKS."""
    address = urlsplit(url)
    host = address.hostname or ""
    if _is_here(host) or proxy_bypass(host) or proxy_bypass(f"{host}:{address.port}"):
        return None
    proxies = getproxies()
    found = proxies.get(address.scheme) or proxies.get("all")
    if found is None:
        return None
    proxy = found if "://" in found else f"http://{found}"
    if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
        raise OptionError(f"{without_password(proxy)} is no HTTP proxy.", NO_PROXY_ADVICE)
    return proxy


def by_proxy(url: str) -> str:
    """Return words that name the proxy to ``url``, with a space before them; nothing where there is none."""
    with suppress(OptionError):
        proxy = proxy_for(url)
        return "" if proxy is None else f" by the proxy {without_password(proxy)}"
    return ""


def without_password(proxy: str) -> str:
    """Return a proxy's address without the user and password in it."""
    parts = urlsplit(proxy)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def open_way(url: str, timeout_s: float) -> socket.socket:
    """Open a connection to the host of ``url``, without TLS. Raises OSError, also for a proxy that refuses,
    and OptionError as :func:`proxy_for`."""
    address = urlsplit(url)
    secure = address.scheme in ("https", "wss")
    host, port = address.hostname or "", address.port or (443 if secure else 80)
    proxy = proxy_for(address._replace(scheme="https" if secure else "http").geturl())
    if proxy is None:
        return socket.create_connection((host, port), timeout_s)
    parts = urlsplit(proxy)
    tunnel = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    tunnel.set_tunnel(host, port, _authorization(parts.username, parts.password))
    try:
        tunnel.connect()
    except http.client.HTTPException as error:
        tunnel.close()
        raise OSError(f"the proxy answered with {type(error).__name__}") from error
    opened: socket.socket = tunnel.sock
    tunnel.sock = None  # it is ours now
    return opened


def _authorization(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False
