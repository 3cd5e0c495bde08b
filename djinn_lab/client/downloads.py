"""Results from a pool on another host, many small ones by one request. What has come of one stays when its
connection breaks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import httpx

from djinn_lab.capture.host.interrupts import check
from djinn_lab.client.moving import Moving
from djinn_lab.client.transfer_requests import TransferRequests
from djinn_lab.protocol.rest.transfers import PIECES_FROM_BYTES, RESULTS_MAX

READ_BYTES = 64 * 2**10
"""On a slow link an interrupt waits for this."""
PARTIAL = 206


class Downloads:
    """``joins``: whether the pool takes several names in one request."""

    def __init__(self, requests: TransferRequests, moving: Moving, joins: bool) -> None:
        self._requests = requests
        self._moving = moving
        self._names_max = RESULTS_MAX if joins else 1

    def fetch(self, sizes: Mapping[str, int]) -> dict[str, bytearray]:
        """Return the contents of results by name, and have the pool delete them. ``sizes``: how many bytes
        each has. Raises PoolLost where the way broke: what has come, of all of them, is not asked for
        again."""
        groups = {_path_of(names): names for names in _groups(sizes, self._names_max)}
        kept = [
            path for path, names in groups.items() if self._stays(path, sum(map(sizes.__getitem__, names)))
        ]
        if kept:
            self._leave_deleting(kept)
        found: dict[str, bytearray] = {}
        for path, names in groups.items():
            found.update(_cut(self._moving.results.pop(path), names, sizes))
        return found

    def _stays(self, path: str, nbytes: int) -> bool:
        """Download what has not come yet. Return whether it is still on the pool."""
        content = self._moving.results.setdefault(path, bytearray())
        if len(content) == nbytes:
            return True

        def get(http: httpx.Client) -> httpx.Response:
            with http.stream("GET", path, headers={"Range": f"bytes={len(content)}-"}) as response:
                if response.status_code >= 400:
                    response.read()
                    return response
                if response.status_code != PARTIAL:  # an older pool, which deletes it by itself
                    content.clear()
                for chunk in response.iter_raw(READ_BYTES):
                    check()
                    content.extend(chunk)
                    self._moving.tick()
            return response

        return self._requests.check(get).status_code == PARTIAL

    def _leave_deleting(self, paths: Sequence[str]) -> None:
        """Delete results beside what comes next, which needs no answer: they go with their session anyway."""

        def delete() -> None:
            with suppress(httpx.HTTPError, RuntimeError):  # the connection was closed meanwhile
                for path in paths:
                    self._requests.delete(path)

        threading.Thread(target=delete, name="delete results", daemon=True).start()


def _groups(sizes: Mapping[str, int], names_max: int) -> Iterator[list[str]]:
    """Put small results together; a large one is alone, and need not be copied."""
    small = [name for name, nbytes in sizes.items() if nbytes < PIECES_FROM_BYTES]
    yield from ([name] for name in sizes if sizes[name] >= PIECES_FROM_BYTES)
    yield from (small[start : start + names_max] for start in range(0, len(small), names_max))


def _path_of(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"/v1/results/{names[0]}"
    return "/v1/results?" + "&".join(f"name={name}" for name in names)


def _cut(
    content: bytearray, names: Sequence[str], sizes: Mapping[str, int]
) -> Iterator[tuple[str, bytearray]]:
    if len(names) == 1:
        yield names[0], content
        return
    start = 0
    for name in names:
        yield name, content[start : start + sizes[name]]
        start += sizes[name]
