"""HTTP requests that move tensors to and from a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx

from djinn_lab.client.connection import PoolConnection
from djinn_lab.client.trust import public_context
from djinn_lab.client.ways import proxy_for
from djinn_lab.errors import PoolLost, Refused

TIMEOUTS = httpx.Timeout(120.0, connect=10.0, write=30.0)
"""After them a link counts as broken. The answer to an upload waits for what buffers on the way hold."""
TRY_AGAIN = (408, 502, 503, 504)
"""The way broke between a proxy and the pool, or the pool is being started again."""
TRANSFERS_LOST = "Run the cell again."


class TransferRequests:
    """Connections that stay open between requests, the same way as ``connection``'s."""

    def __init__(self, connection: PoolConnection, token: str) -> None:
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUTS,
            trust_env=False,
            proxy=proxy_for(connection.url),
            verify=connection.tls or public_context(),
        )

    def check(
        self, request: Callable[[httpx.Client], httpx.Response], but: Sequence[int] = ()
    ) -> httpx.Response:
        """Return the answer. Raises PoolLost where none comes, Refused for a status of 400 and more that is
        not in ``but``."""
        try:
            response = request(self._http)
        except httpx.HTTPError as error:
            raise PoolLost(
                f"a tensor could not be moved to or from the pool: {error or type(error).__name__}",
                TRANSFERS_LOST,
            ) from None
        if response.status_code in TRY_AGAIN:
            raise PoolLost(f"the pool did not take a tensor: {_detail(response)}", TRANSFERS_LOST)
        if response.status_code >= 400 and response.status_code not in but:
            raise Refused(f"the pool refused a tensor: {_detail(response)}")
        return response

    def delete(self, path: str) -> None:
        """Raises httpx.HTTPError, and RuntimeError where this was closed meanwhile."""
        self._http.delete(path)

    def close(self) -> None:
        self._http.close()


def _detail(response: httpx.Response) -> str:
    """Return the pool's own words, or the status of what is no pool's answer."""
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"
