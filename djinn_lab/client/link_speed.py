"""How far away a pool is: the round trip, and bytes per second in both directions."""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

from djinn_lab.client.rest import PoolClient
from djinn_lab.protocol.rest.transfers import LINK_BYTES_MAX

ROUND_TRIPS = 9
SAMPLES = 3
FIRST_BYTES = 2**18
LONG_S = 0.4
"""A transfer that takes as long is measured well enough."""


class LinkSpeed(NamedTuple):
    """Medians of :data:`ROUND_TRIPS` and :data:`SAMPLES`. ``round_trip_s`` of a connection that is open;
    ``up`` and ``down`` in bytes per second."""

    round_trip_s: float
    up: float
    down: float

    def upload_s(self, nbytes: int) -> float:
        """Return how long a tensor takes to the pool."""
        return self.round_trip_s + nbytes / self.up


def measure_link(pool: PoolClient) -> LinkSpeed:
    """Measure the way to a pool, in some seconds. Raises the errors of
    :class:`~djinn_lab.client.requests.PoolRequests`, PoolError for a pool of an older version."""
    pool.alive()  # the connection is opened
    round_trip_s = median(_seconds(pool.alive) for _ in range(ROUND_TRIPS))

    def receive(nbytes: int) -> float:
        return _seconds(lambda: pool.receive_bytes(nbytes))

    def send(nbytes: int) -> float:
        data = os.urandom(nbytes)
        return _seconds(lambda: pool.send_bytes(data))

    return LinkSpeed(round_trip_s, _rate(send, round_trip_s), _rate(receive, round_trip_s))


def _rate(move: Callable[[int], float], round_trip_s: float) -> float:
    """Return bytes per second, of transfers that are so large that the round trip hardly counts."""
    nbytes = FIRST_BYTES
    while move(nbytes) < LONG_S + round_trip_s and nbytes < LINK_BYTES_MAX:
        nbytes *= 4
    return median(nbytes / max(1e-6, move(nbytes) - round_trip_s) for _ in range(SAMPLES))


def _seconds(action: Callable[[], object]) -> float:
    started = perf_counter()
    action()
    return perf_counter() - started
