"""Requests to one pool over HTTP: its address, its token, and an error of the client for each that fails."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from djinn_lab.client.addresses import leader_url, restart_under_way
from djinn_lab.client.credentials import TOKEN_VARIABLE, TokenSource, token_source
from djinn_lab.client.trust import known_fingerprint, not_proven, public_context, tls_context
from djinn_lab.client.ways import by_proxy, proxy_for
from djinn_lab.errors import (
    AuthenticationError,
    CancelFailed,
    OptionError,
    PoolError,
    PoolLost,
    PoolNotFound,
    Refused,
)
from djinn_lab.protocol.configured_start import start_command
from djinn_lab.protocol.runtime_file import read_runtime

POOL_VARIABLE = "DJINN_POOL"
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
START_ADVICE = "Start one with: djinn-lab pool start"
OTHER_VERSION_ADVICE = "Install the same version of djinn-lab here and on the pool."

Query = Mapping[str, str | float | None]
"""Parameters by name; those that are None are left out."""
Answer = TypeVar("Answer")


class PoolRequests:
    """One pool, as one user. Safe for several threads. ``certificate``: as of
    :func:`djinn_lab.client.trust.tls_context`.

    Every request raises PoolNotFound when nothing listens there, PoolLost when the connection breaks,
    AuthenticationError on a refused token, Refused when the role or the pool forbids it, and PoolError
    with the pool's own words otherwise, or for an answer that is not understood.
    """

    def __init__(self, url: str, token: str, certificate: str | None = None) -> None:
        self._follows_runtime = False
        self._tokens: TokenSource | None = None
        self._certificate = certificate
        self._use(url, token)

    @classmethod
    def find(cls) -> Self:
        """The pool of ``DJINN_POOL``, with the token of
        :func:`~djinn_lab.client.credentials.token_source`; else this user's running one, and later the one
        that takes its place. Raises PoolNotFound, and AuthenticationError without a token."""
        url, token = os.environ.get(POOL_VARIABLE), os.environ.get(TOKEN_VARIABLE)
        if url:
            leader = leader_url(url)
            tokens = token_source(leader)
            client = cls(leader, tokens())
            client._tokens = tokens
            return client
        info = read_runtime()
        if info is None:
            if (silent := restart_under_way()) is not None:
                raise silent
            raise PoolNotFound("No pool is running on this machine.", f"Start one with: {start_command()}")
        client = cls(info.url, token or info.token)
        client._follows_runtime = True
        return client

    def close(self) -> None:
        self._finalizer()

    @property
    def fingerprint(self) -> str:
        """The certificate that clients elsewhere can be set to expect; empty where it is not pinned."""
        return known_fingerprint(self.url, self._certificate) if self.url.startswith("https:") else ""

    def _read(self, kind: type[Answer], path: str, query: Query | None = None) -> Answer:
        return self._decoded(self._send("GET", path, query), kind)

    def _send_body(self, kind: type[Answer], method: str, path: str, body: msgspec.Struct) -> Answer:
        return self._decoded(self._send(method, path, body=body), kind)

    def _cancel(self, kind: type[Answer], path: str) -> Answer:
        response = self._send("POST", path)
        if response.status_code == 409:
            raise CancelFailed(_detail(response))
        return self._decoded(response, kind)

    def _decoded(self, response: httpx.Response, kind: type[Answer]) -> Answer:
        """Decode the answer of a request that succeeded."""
        self._check(response)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:
            raise not_understood(error) from None

    def _request(
        self, method: str, path: str, query: Query | None = None, body: bytes | None = None
    ) -> httpx.Response:
        response = self._send(method, path, query, body)
        self._check(response)
        return response

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: msgspec.Struct | bytes | None = None,
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        content = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        kind = "application/json" if isinstance(body, msgspec.Struct) else "application/octet-stream"
        headers = None if body is None else {"Content-Type": kind}
        try:
            answer = self._http.request(method, path, params=given, content=content, headers=headers)
            if answer.status_code == 401 and self._renews():
                answer = self._http.request(method, path, params=given, content=content, headers=headers)
            return answer
        except (httpx.ConnectError, httpx.ProxyError) as error:
            unproven = not_proven(self.url, error)
            if unproven is not None:
                raise unproven from None
            if self._moved_on():
                return self._send(method, path, query, body)
            raise PoolNotFound(
                f"No pool answers at {self.url}{by_proxy(self.url)} ({error}).", START_ADVICE
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PoolLost(f"The connection to {self.url} broke ({error}).", "Try again.") from None

    def _use(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            proxy=proxy_for(self.url),
            verify=tls_context(self.url, self._certificate) or public_context(),
        )
        self._finalizer = weakref.finalize(self, self._http.close)

    def _renews(self) -> bool:
        """Return whether there is another token by now. If so, use it from here on."""
        token = "" if self._tokens is None else self._tokens()
        if not token or self._http.headers["Authorization"] == f"Bearer {token}":
            return False
        self._http.headers["Authorization"] = f"Bearer {token}"
        return True

    def _moved_on(self) -> bool:
        """Return whether this user's pool runs at another address by now. If so, use that address from here
        on."""
        info = read_runtime() if self._follows_runtime else None
        if info is None or info.url == self.url:
            return False
        self.close()
        self._use(info.url, os.environ.get(TOKEN_VARIABLE) or info.token)
        return True

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        detail = _detail(response)
        match response.status_code:
            case 401:
                advice = f"Check {TOKEN_VARIABLE}, or ask the pool's administrator for a token."
                raise AuthenticationError(f"The pool at {self.url} refused the token: {detail}", advice)
            case 403 | 413:
                raise Refused(detail)
            case 400 | 422:
                raise OptionError(detail)
            case _:
                raise PoolError(detail)


def path_part(text: str) -> str:
    """One segment of a path."""
    return quote(text, safe="") or "-"


def path_parts(text: str) -> str:
    """A name with slashes, as segments of a path."""
    return "/".join(map(path_part, text.split("/")))


def not_understood(error: Exception) -> PoolError:
    """The error for an answer in a form that this version does not know."""
    return PoolError(f"The pool's answer is not understood: {error}", OTHER_VERSION_ADVICE)


def _detail(response: httpx.Response) -> str:
    """The pool's own words."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"The pool answered with HTTP {response.status_code}."
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in detail)
    return str(detail)
