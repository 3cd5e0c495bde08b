"""The way to a pool: straight, or by the proxy that the environment names.

As other programs have it: ``HTTPS_PROXY`` for ``https`` addresses, ``HTTP_PROXY`` for ``http``, ``ALL_PROXY``
for both, and ``NO_PROXY`` with the hosts that are reached without one: names, which stand for what is below
them, too, addresses and networks (``10.0.0.0/8``), each with a port or without. This machine is always among
those.
"""

from __future__ import annotations

import base64
import http.client
import re
import socket
from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from djinn_lab.errors import OptionError

NO_PROXY_ADVICE = "Name an http:// proxy, or set NO_PROXY to the hosts that are reached without one."
NO_ADDRESS = "What HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names is no address."
PASSWORD_ADVICE = (
    "It is http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with the special characters of user and "
    "password written as %XX, such as %40 for @ and %23 for #."
)
_BRACKETS = re.compile(r"\[(.+)\](?::(\d+))?")


def proxy_for(url: str) -> str | None:
    """Return the address of the proxy by which to ask ``url``, None for none. Raises OptionError for one of a
    kind that is not spoken, such as SOCKS, and for what is no address."""
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    if _is_here(host) or proxy_bypass(host) or proxy_bypass(f"{host}:{port}") or _is_exempt(host, port):
        return None
    proxies = getproxies()
    found = proxies.get(address.scheme) or proxies.get("all")
    return None if found is None else _checked(found)


def _checked(found: str) -> str:
    """Return the address of a proxy, with user and password in the form that all that reads it understands.
    The errors show nothing of a password, wherever it ends."""
    try:
        parts = urlsplit(found if "://" in found else f"http://{found}")
        port = parts.port
    except ValueError:  # also for a character of a password that ends the host
        raise OptionError(NO_ADDRESS, PASSWORD_ADVICE) from None
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise OptionError(NO_ADDRESS, PASSWORD_ADVICE)
    if parts.scheme != "http" or not parts.hostname:
        raise OptionError(f"{without_password(parts.geturl())} is no HTTP proxy.", NO_PROXY_ADVICE)
    host = bracketed(parts.hostname) + ("" if port is None else f":{port}")
    if parts.username is None:
        return f"http://{host}"
    user, password = (quote(unquote(part), safe="") for part in (parts.username, parts.password or ""))
    return f"http://{user}:{password}@{host}"


def bracketed(host: str) -> str:
    """Return a host as it stands in an address: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


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
    tunnel.set_tunnel(bracketed(host), port, _authorization(parts.username, parts.password))
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


def _is_exempt(host: str, port: int) -> bool:
    """Return whether NO_PROXY has the host in a form that ``proxy_bypass`` does not read: ``*.example``, an
    address in brackets, or a network."""
    names = getproxies().get("no", "").split(",")
    return any(_stands_for(name.strip().lower(), host, port) for name in names)


def _stands_for(name: str, host: str, port: int) -> bool:
    if name.startswith("*."):
        return host.endswith(name[1:])
    in_brackets = _BRACKETS.fullmatch(name)
    if in_brackets is not None:
        name = in_brackets[1]
        if in_brackets[2] not in (None, str(port)):
            return False
    with suppress(ValueError):  # it is a name, or the host is
        return ip_address(host) in ip_network(name, strict=False)
    return False


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False
